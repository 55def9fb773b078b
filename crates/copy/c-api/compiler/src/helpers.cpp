// Functions and call sites that the pass adds to a module. In C:
//
//   bool unlade.copy(void *dst, const void *src, size_t n, const struct copier_site *site)
//   {
//       size_t d = (size_t)dst - (size_t)src;
//       if (d < n || -d < n) { memmove(dst, src, n); return false; }
//       int saved = errno;
//       copier_amemcpy_at(dst, src, n, site);
//       errno = saved;
//       return true;
//   }
//
//   void unlade.sync(void *dst, const void *src, size_t n)
//   {
//       int saved = errno;
//       int failed = csync(dst, n);
//       csync_write(src, n);
//       errno = saved;
//       if (failed) memcpy(dst, src, n);
//   }
//
// The library refuses ranges that overlap, which memmove accepts; memcpy of a range to itself is
// common, too. A copy fails where memcpy would have caught a signal: copied again, it does so. The
// source is unchanged until the sync, so a second copy has the same result. memcpy leaves errno.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include "helpers.h"
#include "rules.h"

#include "llvm/IR/DebugInfoMetadata.h"
#include "llvm/IR/IRBuilder.h"

using namespace llvm;

namespace unlade {

namespace {

/// The library's functions.
FunctionCallee libraryFunction(Module &M, StringRef Name, Type *Result,
                               ArrayRef<Type *> Parameters) {
  FunctionCallee Callee =
      M.getOrInsertFunction(Name, FunctionType::get(Result, Parameters, false));
  if (auto *F = dyn_cast<Function>(Callee.getCallee()))
    F->addFnAttr(Attribute::NoUnwind);
  return Callee;
}

/// Creates a function that all modules of a program share.
Function *sharedFunction(Module &M, StringRef Name, FunctionType *Type) {
  Function *F = Function::Create(Type, GlobalValue::LinkOnceODRLinkage, Name, M);
  F->setVisibility(GlobalValue::HiddenVisibility);
  F->setComdat(M.getOrInsertComdat(Name));
  F->addFnAttr(Attribute::NoUnwind);
  F->addFnAttr(Attribute::NoInline);
  F->addFnAttr(Attribute::UWTable);
  return F;
}

Value *errnoAddress(Module &M, IRBuilder<> &At) {
  return At.CreateCall(libraryFunction(M, "__errno_location", At.getInt32Ty()->getPointerTo(), {}));
}

Function *makeCopy(Module &M) {
  IRBuilder<> At(M.getContext());
  Type *Bytes = At.getInt8PtrTy(), *Size = At.getInt64Ty();
  Function *F = sharedFunction(
      M, "unlade.copy", FunctionType::get(At.getInt1Ty(), {Bytes, Bytes, Size, Bytes}, false));
  Argument *Dst = F->getArg(0), *Src = F->getArg(1), *N = F->getArg(2), *Site = F->getArg(3);
  BasicBlock *Entry = BasicBlock::Create(M.getContext(), "", F);
  BasicBlock *Overlap = BasicBlock::Create(M.getContext(), "overlap", F);
  BasicBlock *Apart = BasicBlock::Create(M.getContext(), "apart", F);
  At.SetInsertPoint(Entry);
  Value *Distance = At.CreateSub(At.CreatePtrToInt(Dst, Size), At.CreatePtrToInt(Src, Size));
  Value *Overlaps = At.CreateOr(At.CreateICmpULT(Distance, N),
                                At.CreateICmpULT(At.CreateNeg(Distance), N), "overlaps");
  At.CreateCondBr(rule("overlap") ? Overlaps : At.getFalse(), Overlap, Apart);
  At.SetInsertPoint(Overlap);
  At.CreateMemMove(Dst, MaybeAlign(1), Src, MaybeAlign(1), N);
  At.CreateRet(At.getFalse());
  At.SetInsertPoint(Apart);
  Value *Errno = errnoAddress(M, At);
  Value *Saved = At.CreateLoad(At.getInt32Ty(), Errno);
  At.CreateCall(libraryFunction(M, "copier_amemcpy_at", Bytes, {Bytes, Bytes, Size, Bytes}),
                {Dst, Src, N, Site});
  At.CreateStore(Saved, Errno);
  At.CreateRet(At.getTrue());
  return F;
}

Function *makeSync(Module &M) {
  IRBuilder<> At(M.getContext());
  Type *Bytes = At.getInt8PtrTy(), *Size = At.getInt64Ty();
  Function *F = sharedFunction(M, "unlade.sync",
                               FunctionType::get(At.getVoidTy(), {Bytes, Bytes, Size}, false));
  Argument *Dst = F->getArg(0), *Src = F->getArg(1), *N = F->getArg(2);
  BasicBlock *Entry = BasicBlock::Create(M.getContext(), "", F);
  BasicBlock *Again = BasicBlock::Create(M.getContext(), "again", F);
  BasicBlock *Done = BasicBlock::Create(M.getContext(), "done", F);
  At.SetInsertPoint(Entry);
  Value *Errno = errnoAddress(M, At);
  Value *Saved = At.CreateLoad(At.getInt32Ty(), Errno);
  Value *Failed =
      At.CreateCall(libraryFunction(M, "csync", At.getInt32Ty(), {Bytes, Size}), {Dst, N});
  At.CreateCall(libraryFunction(M, "csync_write", At.getInt32Ty(), {Bytes, Size}), {Src, N});
  At.CreateStore(Saved, Errno);
  At.CreateCondBr(At.CreateIsNotNull(Failed), Again, Done);
  At.SetInsertPoint(Again);
  At.CreateMemCpy(Dst, MaybeAlign(1), Src, MaybeAlign(1), N);
  At.CreateBr(Done);
  At.SetInsertPoint(Done);
  At.CreateRetVoid();
  return F;
}

} // namespace

Helpers::Helpers(Module &M) : M(M) {
  Function *OfCopy = M.getFunction("unlade.copy");
  Function *OfSync = M.getFunction("unlade.sync");
  Copy = OfCopy ? OfCopy : makeCopy(M);
  Sync = OfSync ? OfSync : makeSync(M);
}

Value *Helpers::site(const DebugLoc &Place, Function &F) const {
  IRBuilder<> At(M.getContext());
  StructType *Type = StructType::get(At.getInt8PtrTy(), At.getInt32Ty(), At.getInt32Ty(), At.getInt32Ty());
  Constant *File = ConstantPointerNull::get(At.getInt8PtrTy());
  unsigned Line = 0;
  const auto *Location = dyn_cast_or_null<DILocation>(Place.get());
  if (Location && Location->getLine() != 0) {
    Line = Location->getLine();
    Constant *Text = ConstantDataArray::getString(M.getContext(), Location->getFilename());
    auto *Name = new GlobalVariable(M, Text->getType(), true, GlobalValue::PrivateLinkage, Text,
                                    "unlade.file");
    Name->setUnnamedAddr(GlobalValue::UnnamedAddr::Global);
    File = ConstantExpr::getBitCast(Name, At.getInt8PtrTy());
  }
  // COPIER_SITE_HAS_STATE: the library writes the last field.
  Constant *Value =
      ConstantStruct::get(Type, {File, At.getInt32(Line), At.getInt32(1), At.getInt32(0)});
  // Its address identifies the place in the program, so it must not be merged with another one.
  auto *Site = new GlobalVariable(M, Type, false, GlobalValue::PrivateLinkage, Value,
                                  "unlade.site." + F.getName());
  return ConstantExpr::getBitCast(Site, At.getInt8PtrTy());
}

} // namespace unlade
