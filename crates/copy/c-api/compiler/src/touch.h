// The question before which instructions a pending copy must be synced.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#ifndef UNLADE_TOUCH_H
#define UNLADE_TOUCH_H

#include "llvm/Analysis/AliasAnalysis.h"
#include "llvm/IR/IntrinsicInst.h"

namespace unlade {

/// The ranges of a pending copy.
class Pending {
public:
  Pending(const llvm::MemTransferInst &Copy, llvm::AAResults &Alias);

  /// Returns why the copy must be synced before the instruction, or null if it need not be.
  const char *reasonToSync(const llvm::Instruction &I) const;

private:
  const char *reasonOfCall(const llvm::CallBase &Call) const;
  bool touches(const llvm::Instruction &I) const;

  llvm::AAResults &Alias;
  llvm::MemoryLocation Destination;
  llvm::MemoryLocation Source;
};

} // namespace unlade

#endif
