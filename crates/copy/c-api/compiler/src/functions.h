// Functions that the pass leaves alone as a whole.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#ifndef UNLADE_FUNCTIONS_H
#define UNLADE_FUNCTIONS_H

#include "llvm/ADT/SmallPtrSet.h"
#include "llvm/IR/Module.h"

namespace unlade {

/// The functions of a module that must keep their copies.
class Exempt {
public:
  explicit Exempt(llvm::Module &M);

  /// Returns the reason to leave the function alone, or null.
  const char *reason(llvm::Function &F) const;

private:
  void findSignalHandlers(llvm::Module &M);
  void findAnnotated(llvm::Module &M);
  void findResolvers(llvm::Module &M);

  llvm::SmallPtrSet<const llvm::Function *, 8> Handlers;
  llvm::SmallPtrSet<const llvm::Function *, 8> Annotated;
  llvm::SmallPtrSet<const llvm::Function *, 8> Resolvers;
};

/// Returns the reason to leave the module alone, or null.
const char *exemptModule(const llvm::Module &M);

} // namespace unlade

#endif
