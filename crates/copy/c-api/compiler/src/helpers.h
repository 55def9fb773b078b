// Functions and call sites that the pass adds to a module.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#ifndef UNLADE_HELPERS_H
#define UNLADE_HELPERS_H

#include "llvm/IR/DebugLoc.h"
#include "llvm/IR/Module.h"

namespace unlade {

/// The functions that copies and syncs of a module call; one of each in a program.
class Helpers {
public:
  explicit Helpers(llvm::Module &M);

  /// Returns a `struct copier_site` for a copy: file and line, if they are known.
  llvm::Value *site(const llvm::DebugLoc &Place, llvm::Function &F) const;

  /// `bool unlade.copy(dst, src, n, site)`: true if the copy may be pending.
  llvm::FunctionCallee Copy;
  /// `void unlade.sync(dst, src, n)`.
  llvm::FunctionCallee Sync;

private:
  llvm::Module &M;
};

} // namespace unlade

#endif
