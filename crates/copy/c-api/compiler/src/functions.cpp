// Functions that the pass leaves alone as a whole: those that run where the library must not be
// called, and those whose control flow LLVM's graph does not show.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include "functions.h"
#include "rules.h"

#include "llvm/ADT/StringSwitch.h"
#include "llvm/ADT/Triple.h"
#include "llvm/IR/Constants.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/IntrinsicInst.h"
#include "llvm/Support/CodeGen.h"

using namespace llvm;

namespace unlade {

namespace {

/// `void (int)` or `void (int, T *, U *)`: the types of signal handlers.
bool hasTypeOfHandler(const Function &F) {
  FunctionType *Type = F.getFunctionType();
  if (!Type->getReturnType()->isVoidTy() || Type->isVarArg() || Type->getNumParams() == 0 ||
      !Type->getParamType(0)->isIntegerTy(32))
    return false;
  if (Type->getNumParams() == 1)
    return true;
  return Type->getNumParams() == 3 && Type->getParamType(1)->isPointerTy() &&
         Type->getParamType(2)->isPointerTy();
}

/// Functions of the C library that return twice, also where their declaration lacks the attribute.
bool returnsTwice(const CallBase &Call) {
  if (Call.hasFnAttr(Attribute::ReturnsTwice))
    return true;
  const Function *Callee = Call.getCalledFunction();
  return Callee && StringSwitch<bool>(Callee->getName())
                       .Cases("setjmp", "_setjmp", "sigsetjmp", "__sigsetjmp", true)
                       .Cases("vfork", "getcontext", "savectx", true)
                       .Default(false);
}

bool isCoroutine(const Instruction &I) {
  const auto *Call = dyn_cast<IntrinsicInst>(&I);
  return Call && Call->getCalledFunction()->getName().startswith("llvm.coro.");
}

/// Landing pads are fine: no copy is pending across an invoke. Funclets are not expected on Linux.
bool isFunclet(const Instruction &I) {
  return isa<FuncletPadInst>(I) || isa<CatchSwitchInst>(I);
}

/// The library's own functions, and those that the pass adds.
bool isOfLibrary(StringRef Name) {
  return Name.startswith("unlade.") || Name.startswith("copier_") || Name.startswith("csync") ||
         Name.startswith("amemcpy") || Name == "amemmove" || Name == "cdiscard";
}

const char *reasonOfBody(Function &F) {
  for (Instruction &I : instructions(F)) {
    if (const auto *Call = dyn_cast<CallBase>(&I))
      if (returnsTwice(*Call) && rule("returns-twice"))
        return "the function calls one that returns twice";
    if (isCoroutine(I) && rule("coroutine"))
      return "the function is a coroutine";
    if (isFunclet(I))
      return "the function has funclets";
  }
  return nullptr;
}

} // namespace

const char *exemptModule(const Module &M) {
  Triple Target(M.getTargetTriple());
  if (Target.getArch() != Triple::x86_64 || !Target.isOSLinux() || Target.isX32())
    return "the library needs Linux on x86-64";
  if (M.getCodeModel() == CodeModel::Kernel)
    return "the module is of a kernel";
  return nullptr;
}

Exempt::Exempt(Module &M) {
  findSignalHandlers(M);
  findAnnotated(M);
  findResolvers(M);
}

/// The library is not async-signal-safe, and memcpy is. A function whose address is taken and whose
/// type is that of a handler may be one; so may everything that it calls.
void Exempt::findSignalHandlers(Module &M) {
  SmallVector<Function *, 8> Left;
  for (Function &F : M)
    if (!F.isDeclaration() && F.hasAddressTaken() && hasTypeOfHandler(F))
      Left.push_back(&F);
  while (!Left.empty()) {
    Function *F = Left.pop_back_val();
    if (!Handlers.insert(F).second)
      continue;
    for (Instruction &I : instructions(*F))
      if (auto *Call = dyn_cast<CallBase>(&I))
        if (auto *Callee = dyn_cast<Function>(Call->getCalledOperand()->stripPointerCasts()))
          if (!Callee->isDeclaration())
            Left.push_back(Callee);
  }
}

/// Functions with __attribute__((annotate("unlade_off"))).
void Exempt::findAnnotated(Module &M) {
  const GlobalVariable *List = M.getNamedGlobal("llvm.global.annotations");
  const auto *Entries = List && List->hasInitializer()
                            ? dyn_cast<ConstantArray>(List->getInitializer())
                            : nullptr;
  if (!Entries)
    return;
  for (const Use &Entry : Entries->operands()) {
    const auto *Fields = dyn_cast<ConstantStruct>(Entry);
    if (!Fields || Fields->getNumOperands() < 2)
      continue;
    const auto *F = dyn_cast<Function>(Fields->getOperand(0)->stripPointerCasts());
    const auto *Text = dyn_cast<GlobalVariable>(Fields->getOperand(1)->stripPointerCasts());
    const auto *Bytes = Text && Text->hasInitializer()
                            ? dyn_cast<ConstantDataSequential>(Text->getInitializer())
                            : nullptr;
    if (F && Bytes && Bytes->isCString() && Bytes->getAsCString() == "unlade_off")
      Annotated.insert(F);
  }
}

/// Resolvers of indirect functions run before the program's libraries are relocated.
void Exempt::findResolvers(Module &M) {
  for (GlobalIFunc &I : M.ifuncs())
    if (const auto *F = dyn_cast<Function>(I.getResolver()->stripPointerCasts()))
      Resolvers.insert(F);
}

const char *Exempt::reason(Function &F) const {
  if (isOfLibrary(F.getName()))
    return "the function belongs to the library";
  if (F.hasFnAttribute(Attribute::Naked) && rule("naked"))
    return "the function is naked";
  if ((F.hasFnAttribute("coroutine.presplit") || F.hasFnAttribute("presplitcoroutine")) &&
      rule("coroutine"))
    return "the function is a coroutine";
  if (F.hasFnAttribute("no-builtins") && rule("no-builtins"))
    return "the function is compiled without built-in functions";
  if (F.getCallingConv() != CallingConv::C && F.getCallingConv() != CallingConv::Fast &&
      rule("calling-convention"))
    return "the function has a special calling convention";
  if (Annotated.contains(&F) && rule("annotation"))
    return "the function has the annotation unlade_off";
  if (Handlers.contains(&F) && rule("signal-handler"))
    return "the function may run in a signal handler";
  if (Resolvers.contains(&F) && rule("resolver"))
    return "the function resolves an indirect function";
  return reasonOfBody(F);
}

} // namespace unlade
