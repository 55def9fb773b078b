// The analysis of one copy: where it must be synced, and if it is worth it.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#ifndef UNLADE_PLAN_H
#define UNLADE_PLAN_H

#include "llvm/ADT/SmallVector.h"
#include "llvm/Analysis/AliasAnalysis.h"
#include "llvm/Analysis/LoopInfo.h"
#include "llvm/Analysis/ScalarEvolution.h"
#include "llvm/IR/Dominators.h"
#include "llvm/IR/IntrinsicInst.h"

#include <cstdint>
#include <utility>

namespace unlade {

/// The places at which a copy is synced.
struct Plan {
  llvm::MemTransferInst *Copy = nullptr;
  /// Syncs before these instructions.
  llvm::SmallVector<llvm::Instruction *, 8> Before;
  /// Syncs on these edges: a branch, and the number of its successor.
  llvm::SmallVector<std::pair<llvm::Instruction *, unsigned>, 4> Edges;
  /// Work up to the farthest sync, in simple instructions, on the shortest path to it.
  uint64_t Window = 0;
  /// The instruction at that sync, and why it is there.
  const llvm::Instruction *Farthest = nullptr;
  const char *Why = nullptr;
  /// The reason to leave the copy alone, or null.
  const char *Reason = nullptr;
};

/// Analyses of the function that contains the copies. The function stays unchanged meanwhile.
struct Analyses {
  llvm::AAResults &Alias;
  const llvm::DominatorTree &Dominators;
  const llvm::LoopInfo &Loops;
  llvm::ScalarEvolution &Evolution;
};

/// Plans one copy.
Plan planCopy(llvm::MemTransferInst &Copy, const Analyses &In);

} // namespace unlade

#endif
