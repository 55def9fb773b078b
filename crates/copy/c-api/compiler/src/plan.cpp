// The analysis of one copy. A copy is pending in the part of the function that the copy dominates,
// from the copy to the first sync of each path. Where control leaves that part, the edge is a sync:
// so each value that the copy used is the same at each sync.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include "plan.h"
#include "rules.h"
#include "touch.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/PostOrderIterator.h"
#include "llvm/IR/CFG.h"
#include "llvm/IR/Instructions.h"

#include <algorithm>
#include <queue>

using namespace llvm;

namespace unlade {

namespace {

/// Passes through a loop whose number of passes is unknown.
constexpr uint64_t LoopPasses = 16;
/// Most passes of nested loops that count.
constexpr uint64_t PassesMax = 1 << 20;
/// Work of a call, in simple instructions.
constexpr uint64_t CallWork = 20;
/// Work of a division or a square root.
constexpr uint64_t DivisionWork = 8;
/// Bytes that an instruction of a block copy or fill moves.
constexpr uint64_t BytesPerInstruction = 16;
/// Why a sync is on an edge.
constexpr const char *EdgeReason = "a join of paths, or a loop that uses the bytes";
/// Bytes of a block copy of unknown length.
constexpr uint64_t BytesUnknown = 1024;

uint64_t workOf(const Instruction &I) {
  if (isa<PHINode>(I) || isa<CastInst>(I) || isa<GetElementPtrInst>(I) || isa<AllocaInst>(I))
    return 0;
  if (const auto *Block = dyn_cast<MemIntrinsic>(&I)) {
    const auto *Length = dyn_cast<ConstantInt>(Block->getLength());
    return (Length ? Length->getZExtValue() : BytesUnknown) / BytesPerInstruction;
  }
  if (isa<DbgInfoIntrinsic>(I) || I.isLifetimeStartOrEnd())
    return 0;
  if (const auto *Call = dyn_cast<CallBase>(&I))
    return isa<IntrinsicInst>(Call) ? 1 : CallWork;
  switch (I.getOpcode()) {
  case Instruction::UDiv:
  case Instruction::SDiv:
  case Instruction::URem:
  case Instruction::SRem:
  case Instruction::FDiv:
    return DivisionWork;
  default:
    return 1;
  }
}

/// Walks the part of a function in which a copy may be pending, by distance from the copy.
class Walk {
public:
  Walk(MemTransferInst &Copy, const Analyses &In)
      : Copy(Copy), In(In), Ranges(Copy, In.Alias), Home(Copy.getParent()) {
    unsigned Number = 0;
    for (BasicBlock *Block : ReversePostOrderTraversal<Function *>(Home->getParent()))
      Numbers[Block] = Number++;
  }

  Plan run() {
    Result.Copy = &Copy;
    visit(Home, std::next(Copy.getIterator()), 0);
    while (!Left.empty()) {
      const auto [Distance, Number, Block] = Left.top();
      Left.pop();
      if (Done.insert(Block).second)
        visit(Block, Block->begin(), Distance);
    }
    return std::move(Result);
  }

private:
  using Entry = std::tuple<uint64_t, unsigned, BasicBlock *>;

  /// How often the block runs for each run of the copy, roughly.
  uint64_t passesOf(const BasicBlock *Block) const {
    uint64_t Passes = 1;
    for (const Loop *L = In.Loops.getLoopFor(Block); L && !L->contains(Home);
         L = L->getParentLoop()) {
      const unsigned Known = In.Evolution.getSmallConstantTripCount(L);
      Passes = std::min(Passes * (Known ? Known : LoopPasses), PassesMax);
    }
    return Passes;
  }

  void visit(BasicBlock *Block, BasicBlock::iterator From, uint64_t Distance) {
    const uint64_t Passes = passesOf(Block);
    for (Instruction &I : make_range(From, Block->end())) {
      if (const char *Why = Ranges.reasonToSync(I)) {
        syncBefore(I, Distance, Why);
        return;
      }
      Distance += Passes * workOf(I);
    }
    leave(*Block->getTerminator(), Distance);
  }

  void syncBefore(Instruction &I, uint64_t Distance, const char *Why) {
    Result.Before.push_back(&I);
    reaches(I, Distance, Why);
  }

  /// Keeps the farthest sync.
  void reaches(Instruction &I, uint64_t Distance, const char *Why) {
    if (Result.Why && Distance <= Result.Window)
      return;
    Result.Window = Distance;
    Result.Farthest = &I;
    Result.Why = Why;
  }

  /// Continues after the last instruction of a block.
  void leave(Instruction &Last, uint64_t Distance) {
    SmallVector<unsigned, 4> Ends, Goes;
    for (unsigned N = 0; N < Last.getNumSuccessors(); N++)
      (endsOnEdge(Last.getParent(), Last.getSuccessor(N)) ? Ends : Goes).push_back(N);
    if (!Ends.empty() && (Goes.empty() || !isa<BranchInst>(Last))) {
      syncBefore(Last, Distance, EdgeReason);
      return;
    }
    for (unsigned N : Ends) {
      Result.Edges.push_back({&Last, N});
      reaches(Last, Distance, EdgeReason);
    }
    for (unsigned N : Goes) {
      BasicBlock *Next = Last.getSuccessor(N);
      if (In.Dominators.properlyDominates(Home, Next))
        Left.push({Distance, Numbers[Next], Next});
    }
  }

  /// Returns true if the copy must be synced on the edge.
  bool endsOnEdge(BasicBlock *From, BasicBlock *To) {
    if (To == Home)
      return rule("back-edge");
    if (!In.Dominators.properlyDominates(Home, To))
      return rule("merge");
    return entersUse(From, To) && rule("loop");
  }

  /// Returns true if the edge enters a loop that uses the ranges: one sync before the loop costs
  /// less than one in each pass.
  bool entersUse(BasicBlock *From, BasicBlock *To) {
    const Loop *Outermost = nullptr;
    for (const Loop *L = In.Loops.getLoopFor(To); L && !L->contains(Home); L = L->getParentLoop())
      Outermost = L;
    if (!Outermost || Outermost->getHeader() != To || Outermost->contains(From))
      return false;
    const auto Known = UsesRanges.find(Outermost);
    if (Known != UsesRanges.end())
      return Known->second;
    const bool Uses = any_of(Outermost->blocks(), [this](const BasicBlock *Block) {
      return any_of(*Block, [this](const Instruction &I) { return Ranges.reasonToSync(I); });
    });
    UsesRanges[Outermost] = Uses;
    return Uses;
  }

  MemTransferInst &Copy;
  const Analyses &In;
  Pending Ranges;
  BasicBlock *Home;
  Plan Result;
  DenseMap<const BasicBlock *, unsigned> Numbers;
  DenseMap<const Loop *, bool> UsesRanges;
  SmallPtrSet<const BasicBlock *, 16> Done;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> Left;
};

/// Returns the reason why such a copy is never turned, or null.
const char *reasonOfCopy(const MemTransferInst &Copy) {
  const Intrinsic::ID Id = Copy.getIntrinsicID();
  if (Id != Intrinsic::memcpy && Id != Intrinsic::memmove)
    return "it must not become a call";
  if (Copy.isVolatile() && rule("volatile-copy"))
    return "it is volatile";
  if ((Copy.getDestAddressSpace() != 0 || Copy.getSourceAddressSpace() != 0) &&
      rule("address-space"))
    return "it is in another address space";
  if (Copy.hasOperandBundles())
    return "it has operand bundles";
  const auto *Length = dyn_cast<ConstantInt>(Copy.getLength());
  if (Length && Length->getValue().ult(thresholdBytes()) && rule("threshold"))
    return "it is short";
  return nullptr;
}

} // namespace

Plan planCopy(MemTransferInst &Copy, const Analyses &In) {
  Plan Result;
  Result.Copy = &Copy;
  Result.Reason = reasonOfCopy(Copy);
  if (Result.Reason)
    return Result;
  if (!In.Dominators.isReachableFromEntry(Copy.getParent())) {
    Result.Reason = "it is never reached";
    return Result;
  }
  Result = Walk(Copy, In).run();
  if (Result.Before.size() + Result.Edges.size() > SyncsMax)
    Result.Reason = "it would need too many syncs";
  else if (Result.Window < windowInstructions() && rule("window"))
    Result.Reason = "its bytes are used too soon";
  return Result;
}

} // namespace unlade
