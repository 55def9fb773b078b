// The question before which instructions a pending copy must be synced. Everything that is not
// known to be harmless is a sync.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include "touch.h"
#include "rules.h"

#include "llvm/IR/Instructions.h"

using namespace llvm;

namespace unlade {

namespace {

/// Bytes of the copy. They carry no types (TBAA): the library's accesses have none.
LocationSize sizeOf(const MemTransferInst &Copy) {
  if (const auto *Length = dyn_cast<ConstantInt>(Copy.getLength()))
    return LocationSize::precise(Length->getZExtValue());
  return LocationSize::afterPointer();
}

/// Instructions that end the function's or the block's run in a way that an edge does not show.
bool leaves(const Instruction &I) {
  if (isa<ReturnInst>(I))
    return rule("return");
  if (isa<UnreachableInst>(I) || isa<BranchInst>(I) || isa<SwitchInst>(I))
    return false;
  return I.isTerminator() && rule("terminator"); // invoke, resume, indirectbr, callbr, ...
}

/// Accesses by which another thread, or a handler, may learn that the copy is made.
bool mayRelease(const Instruction &I) {
  if (isa<FenceInst>(I))
    return rule("fence");
  if (I.isAtomic())
    return rule("atomic");
  return I.isVolatile() && rule("volatile");
}

/// Returns true if the callee gets a copy of an argument's bytes: its attributes do not tell that.
bool passesBytes(const CallBase &Call) {
  for (unsigned N = 0; N < Call.arg_size(); N++)
    if (Call.isPassPointeeByValueArgument(N))
      return true;
  return false;
}

/// Returns true if all that the callee does to memory follows from its attributes.
bool hasKnownEffects(const CallBase &Call) {
  return Call.doesNotAccessMemory() || Call.onlyReadsMemory() || Call.onlyAccessesArgMemory() ||
         Call.onlyAccessesInaccessibleMemory() || Call.onlyAccessesInaccessibleMemOrArgMem();
}

} // namespace

Pending::Pending(const MemTransferInst &Copy, AAResults &Alias)
    : Alias(Alias), Destination(Copy.getRawDest(), sizeOf(Copy)),
      Source(Copy.getRawSource(), sizeOf(Copy)) {}

/// Ranges of stack memory end with the frame, so a call that may leave the frame is one, too.
const char *Pending::reasonOfCall(const CallBase &Call) const {
  if (Call.isInlineAsm())
    return rule("inline-asm") ? "inline assembly" : nullptr;
  if (Call.isMustTailCall())
    return rule("musttail") ? "a call in place of the return" : nullptr;
  if (Call.doesNotReturn())
    return rule("noreturn") ? "a call that does not return" : nullptr;
  if (!Call.getCalledFunction())
    return rule("indirect-call") ? "an indirect call" : nullptr;
  if (passesBytes(Call) && rule("byval"))
    return "an argument that is passed by value from memory";
  if (!Call.doesNotThrow() && rule("unwind"))
    return "a call that may unwind";
  switch (Call.getIntrinsicID()) {
  case Intrinsic::lifetime_start:
  case Intrinsic::lifetime_end:
    return rule("lifetime") && touches(Call) ? "the end of a variable's life" : nullptr;
  case Intrinsic::stackrestore:
    return rule("stackrestore") ? "the end of an array's life" : nullptr;
  default:
    break;
  }
  if ((!Call.hasFnAttr(Attribute::WillReturn) || Call.isConvergent()) && rule("call"))
    return "a call that may not return";
  if (!hasKnownEffects(Call) && rule("call"))
    return "a call with unknown effects";
  return rule("call-memory") && touches(Call) ? "a call that may use or change the bytes" : nullptr;
}

bool Pending::touches(const Instruction &I) const {
  const ModRefInfo OfDestination = Alias.getModRefInfo(&I, Destination);
  if (isRefSet(OfDestination) && rule("read-destination"))
    return true;
  if (isModSet(OfDestination) && rule("write-destination"))
    return true;
  return isModSet(Alias.getModRefInfo(&I, Source)) && rule("write-source");
}

const char *Pending::reasonToSync(const Instruction &I) const {
  if (leaves(I))
    return "the end of the function";
  if (isa<FenceInst>(I) || I.isAtomic() || I.isVolatile())
    return mayRelease(I) ? "an atomic or volatile access" : nullptr;
  if (const auto *Call = dyn_cast<CallBase>(&I))
    return reasonOfCall(*Call);
  return I.mayReadOrWriteMemory() && touches(I) ? "an access that may use or change the bytes" : nullptr;
}

} // namespace unlade
