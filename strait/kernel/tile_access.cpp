// Asks processor and system for matrix tiles (Intel, Instruction Set Extensions, chapter 3; Linux,
// Documentation/arch/x86/xstate.rst).
#include "strait/kernel/products.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace strait::kernel {
namespace {

#if defined(__x86_64__) && defined(__linux__)
bool processor_has_tiles() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kBfloat16Tiles = 1U << 22, kTileRegisters = 1U << 24;
  constexpr unsigned kBoth = kBfloat16Tiles | kTileRegisters;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kBoth) == kBoth;
}

/// The registers' 8 KiB are part of a process's state only where it has asked for them.
bool ask_system() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#else
bool processor_has_tiles() { return false; }
bool ask_system() { return false; }
#endif

}  // namespace

TileAccess request_tiles(bool processor_has, const std::function<bool()>& ask) {
  if (!processor_has) return TileAccess::kMissing;
  return ask() ? TileAccess::kGranted : TileAccess::kDenied;
}

TileAccess tile_access() {
  static const TileAccess answer = request_tiles(processor_has_tiles(), ask_system);
  return answer;
}

std::string tile_text(TileAccess access) {
  switch (access) {
    case TileAccess::kGranted:
      return "matrix tiles";
    case TileAccess::kMissing:
      return "no matrix tiles";
    case TileAccess::kDenied:
      return "matrix tiles that the system denies to this process";
  }
  return "";
}

}  // namespace strait::kernel
