// The change of the function. A flag for each copy tells if it is pending. A sync is a test of the
// flag and, if it is set, a call; the flags become values in registers at the end.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include "rewrite.h"
#include "helpers.h"
#include "rules.h"

#include "llvm/IR/DebugInfoMetadata.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/MDBuilder.h"
#include "llvm/Transforms/Utils/BasicBlockUtils.h"
#include "llvm/Transforms/Utils/PromoteMemToReg.h"

using namespace llvm;

namespace unlade {

namespace {

/// A copy that is being changed.
struct Turned {
  const Plan *Of;
  AllocaInst *Flag;
  Value *Destination;
  Value *Source;
  Value *Length;
  DebugLoc Place;
};

/// A call in a function with debug information needs a place.
DebugLoc placeOf(const Instruction &I) {
  if (I.getDebugLoc())
    return I.getDebugLoc();
  if (DISubprogram *Program = I.getFunction()->getSubprogram())
    return DILocation::get(I.getContext(), 0, 0, Program);
  return {};
}

/// Takes the copy's operands, before anything changes. They are available at every sync.
Turned begin(const Plan &P) {
  MemTransferInst &Copy = *P.Copy;
  IRBuilder<> At(&*Copy.getFunction()->getEntryBlock().getFirstInsertionPt());
  AllocaInst *Flag = At.CreateAlloca(At.getInt1Ty(), nullptr, "unlade.pending");
  At.CreateStore(At.getFalse(), Flag);
  IRBuilder<> Here(&Copy);
  Value *Length = Here.CreateZExt(Copy.getLength(), Here.getInt64Ty());
  return {&P, Flag, Copy.getRawDest(), Copy.getRawSource(), Length, placeOf(Copy)};
}

/// Places the syncs of a copy.
void sync(const Turned &T, Instruction *Before, const Helpers &With) {
  IRBuilder<> At(Before);
  At.SetCurrentDebugLocation(placeOf(*Before));
  Value *IsPending = At.CreateLoad(At.getInt1Ty(), T.Flag, "unlade.is_pending");
  Instruction *Then = SplitBlockAndInsertIfThen(IsPending, Before, false);
  IRBuilder<> In(Then);
  In.SetCurrentDebugLocation(placeOf(*Before));
  In.CreateCall(With.Sync, {T.Destination, T.Source, T.Length});
  In.CreateStore(In.getFalse(), T.Flag);
}

void syncOnEdge(const Turned &T, Instruction *Branch, unsigned Successor, const Helpers &With) {
  BasicBlock *Between = SplitEdge(Branch->getParent(), Branch->getSuccessor(Successor));
  sync(T, Between->getTerminator(), With);
}

/// Replaces the copy itself.
void submit(const Turned &T, const Helpers &With) {
  MemTransferInst *Copy = T.Of->Copy;
  Value *Site = With.site(T.Place, *Copy->getFunction());
  const auto Call = [&](IRBuilder<> &At) {
    At.SetCurrentDebugLocation(T.Place);
    At.CreateStore(At.CreateCall(With.Copy, {T.Destination, T.Source, T.Length, Site}), T.Flag);
  };
  IRBuilder<> At(Copy);
  if (isa<ConstantInt>(T.Length) || !rule("size-test")) {
    Call(At);
    Copy->eraseFromParent();
    return;
  }
  At.SetCurrentDebugLocation(T.Place);
  Value *IsLong = At.CreateICmpUGE(T.Length, At.getInt64(thresholdBytes()), "unlade.is_long");
  Instruction *Long = nullptr, *Short = nullptr;
  SplitBlockAndInsertIfThenElse(IsLong, Copy, &Long, &Short);
  IRBuilder<> InLong(Long), InShort(Short);
  Call(InLong);
  InShort.CreateStore(InShort.getFalse(), T.Flag);
  Copy->moveBefore(Short);
}

} // namespace

void rewrite(Function &F, ArrayRef<Plan> Plans) {
  const Helpers With(*F.getParent());
  SmallVector<Turned, 4> All;
  for (const Plan &P : Plans)
    All.push_back(begin(P));
  // A sync may be before the copy of another plan, so all syncs come first.
  for (const Turned &T : All) {
    for (Instruction *Before : T.Of->Before)
      sync(T, Before, With);
    for (const auto &[Branch, Successor] : T.Of->Edges)
      syncOnEdge(T, Branch, Successor, With);
  }
  SmallVector<AllocaInst *, 4> Flags;
  for (const Turned &T : All) {
    submit(T, With);
    Flags.push_back(T.Flag);
  }
  DominatorTree Dominators(F);
  PromoteMemToReg(Flags, Dominators);
}

} // namespace unlade
