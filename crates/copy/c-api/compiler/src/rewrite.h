// The change of the function: the library's calls, as a plan says.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#ifndef UNLADE_REWRITE_H
#define UNLADE_REWRITE_H

#include "plan.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/IR/Function.h"

namespace unlade {

/// Turns the copies of a function into copies by the library, with their syncs. All plans were made
/// for the unchanged function.
void rewrite(llvm::Function &F, llvm::ArrayRef<Plan> Plans);

} // namespace unlade

#endif
