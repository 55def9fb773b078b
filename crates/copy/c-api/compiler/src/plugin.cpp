// The plugin of clang's pass manager: options, remarks, and the order of the stages.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include "functions.h"
#include "plan.h"
#include "rewrite.h"
#include "rules.h"

#include "llvm/Analysis/BasicAliasAnalysis.h"
#include "llvm/Analysis/GlobalsModRef.h"
#include "llvm/Analysis/OptimizationRemarkEmitter.h"
#include "llvm/Analysis/TargetLibraryInfo.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Passes/PassPlugin.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/raw_ostream.h"

#include <cstdlib>

using namespace llvm;

namespace unlade {

namespace {

cl::opt<uint64_t> Threshold("unlade-threshold", cl::init(4096),
                            cl::desc("Shortest copy that is turned, in bytes"));
cl::opt<uint64_t> Window("unlade-window", cl::init(128),
                         cl::desc("Least work between a copy and its sync, in instructions"));

/// Value of a number option: that of the command line, of the variable, or the default.
uint64_t number(const cl::opt<uint64_t> &Option, const char *Variable) {
  const char *Text = std::getenv(Variable);
  uint64_t Value = 0;
  if (Option.getNumOccurrences() != 0 || !Text || !*Text)
    return Option;
  if (!StringRef(Text).getAsInteger(10, Value))
    return Value;
  errs() << "unlade: " << Variable << ": `" << Text << "` is ignored; give a number\n";
  return Option;
}

} // namespace

uint64_t thresholdBytes() {
  static const uint64_t Value = number(Threshold, "UNLADE_CC_THRESHOLD");
  return Value;
}

uint64_t windowInstructions() {
  static const uint64_t Value = number(Window, "UNLADE_CC_WINDOW");
  return Value;
}

#ifdef UNLADE_TEST_RULES
bool rule(const char *Name) {
  static const char *Without = std::getenv("UNLADE_WITHOUT");
  SmallVector<StringRef, 4> Names;
  StringRef(Without ? Without : "").split(Names, ',');
  return !is_contained(Names, Name);
}
#endif

namespace {

constexpr const char *PassName = "unlade";

class UnladePass : public PassInfoMixin<UnladePass> {
public:
  PreservedAnalyses run(Module &M, ModuleAnalysisManager &Manager) {
    if (exemptModule(M))
      return PreservedAnalyses::all();
    auto &Functions = Manager.getResult<FunctionAnalysisManagerModuleProxy>(M).getManager();
    const Exempt Apart(M);
    SmallVector<Function *, 64> All;
    for (Function &F : M)
      if (!F.isDeclaration())
        All.push_back(&F);
    bool Changed = false;
    for (Function *F : All)
      Changed |= change(*F, Functions, Apart);
    if (!Changed)
      return PreservedAnalyses::all();
    PreservedAnalyses Left = PreservedAnalyses::none();
    // The addresses of globals are passed to the library now.
    Left.abandon<GlobalsAA>();
    return Left;
  }

  /// The pass is not an optimisation that -O0 or optnone exclude.
  static bool isRequired() { return true; }

private:
  static bool change(Function &F, FunctionAnalysisManager &Manager, const Exempt &Apart) {
    SmallVector<MemTransferInst *, 8> Copies;
    for (Instruction &I : instructions(F))
      if (auto *Copy = dyn_cast<MemTransferInst>(&I))
        Copies.push_back(Copy);
    if (Copies.empty())
      return false;
    auto &Remarks = Manager.getResult<OptimizationRemarkEmitterAnalysis>(F);
    const char *Reason = Apart.reason(F);
    // The basic analysis only: it depends on nothing but the function, and needs no types.
    AAResults Alias(Manager.getResult<TargetLibraryAnalysis>(F));
    Alias.addAAResult(Manager.getResult<BasicAA>(F));
    const Analyses In{Alias, Manager.getResult<DominatorTreeAnalysis>(F),
                      Manager.getResult<LoopAnalysis>(F),
                      Manager.getResult<ScalarEvolutionAnalysis>(F)};
    SmallVector<Plan, 8> Plans;
    for (MemTransferInst *Copy : Copies) {
      Plan P;
      P.Copy = Copy;
      P.Reason = Reason;
      if (!Reason)
        P = planCopy(*Copy, In);
      tell(P, Remarks);
      if (!P.Reason)
        Plans.push_back(std::move(P));
    }
    if (Plans.empty())
      return false;
    rewrite(F, Plans);
    Manager.invalidate(F, PreservedAnalyses::none());
    return true;
  }

  /// Adds the sync that is farthest from the copy, with its place.
  static void explain(const Plan &P, OptimizationRemarkMissed &Remark) {
    Remark << "; the farthest sync is after " << ore::NV("Window", unsigned(P.Window))
           << " instructions, before " << ore::NV("Why", StringRef(P.Why));
    const auto *Call = dyn_cast<CallBase>(P.Farthest);
    if (Call && Call->getCalledFunction())
      Remark << " (" << ore::NV("Callee", Call->getCalledFunction()) << ")";
    if (const DebugLoc &Place = P.Farthest->getDebugLoc())
      Remark << ", line " << ore::NV("Line", Place.getLine());
  }

  /// Remarks for -Rpass=unlade and -Rpass-missed=unlade.
  static void tell(const Plan &P, OptimizationRemarkEmitter &Remarks) {
    if (P.Reason)
      Remarks.emit([&] {
        OptimizationRemarkMissed Remark(PassName, "CopyLeft", P.Copy);
        Remark << "copy left alone: " << ore::NV("Reason", StringRef(P.Reason));
        if (P.Why)
          explain(P, Remark);
        return Remark;
      });
    else
      Remarks.emit([&] {
        return OptimizationRemark(PassName, "CopyTurned", P.Copy)
               << "copy made by the copy service; syncs: "
               << ore::NV("Syncs", unsigned(P.Before.size() + P.Edges.size()))
               << ", the farthest after " << ore::NV("Window", unsigned(P.Window))
               << " instructions";
      });
  }
};

} // namespace

} // namespace unlade

extern "C" __attribute__((visibility("default"))) PassPluginLibraryInfo llvmGetPassPluginInfo() {
  return {LLVM_PLUGIN_API_VERSION, "unlade", "0.1", [](PassBuilder &Builder) {
            Builder.registerOptimizerLastEPCallback(
                [](ModulePassManager &Passes, OptimizationLevel) {
                  Passes.addPass(unlade::UnladePass());
                });
            Builder.registerPipelineParsingCallback(
                [](StringRef Name, ModulePassManager &Passes,
                   ArrayRef<PassBuilder::PipelineElement>) {
                  if (Name != "unlade")
                    return false;
                  Passes.addPass(unlade::UnladePass());
                  return true;
                });
          }};
}
