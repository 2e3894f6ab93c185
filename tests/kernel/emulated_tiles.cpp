// Encodings and meaning: Intel, Instruction Set Extensions Programming Reference, chapter 3.
#include "tests/kernel/emulated_tiles.h"

#if defined(__x86_64__) && defined(__linux__)

#include <ucontext.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>

namespace strait::kernel {
namespace {

using Tile = std::array<std::array<uint32_t, 16>, 16>;
struct Registers {
  bool configured = false;
  std::array<Tile, 8> tiles{};
};
thread_local Registers registers;
std::atomic<int64_t> count{0};

/// A VEX instruction of the map 0F 38.
struct Instruction {
  unsigned opcode = 0, prefix = 0, reg = 0, rm = 0, vvvv = 0;
  bool memory = false;
  uint8_t* base = nullptr;
  int64_t index = 0;  // scaled
  int64_t length = 0;
};

uint64_t general_register(const ucontext_t& context, unsigned number) {
  constexpr int kOrder[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                              REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                              REG_R12, REG_R13, REG_R14, REG_R15};
  return static_cast<uint64_t>(context.uc_mcontext.gregs[kOrder[number]]);
}

/// The address behind ModRM; RIP-relative ones do not occur.
void decode_memory(const ucontext_t& context, const uint8_t* at, unsigned extension,
                   Instruction& out) {
  const unsigned mode = at[0] >> 6;
  unsigned base = at[0] & 7U;
  int64_t length = 1;
  if (base == 4) {
    const uint8_t sib = at[length++];
    base = sib & 7U;
    const unsigned index = (sib >> 3 & 7U) | (extension & 2U) << 2;
    if (index != 4)
      out.index = static_cast<int64_t>(general_register(context, index) << (sib >> 6));
  }
  if (mode == 0 && base == 5) std::abort();
  uint64_t address = general_register(context, base | (extension & 1U) << 3);
  if (mode == 1) address += static_cast<uint64_t>(static_cast<int8_t>(at[length++]));
  if (mode == 2) {
    int32_t displacement = 0;
    std::memcpy(&displacement, at + length, 4);
    address += static_cast<uint64_t>(static_cast<int64_t>(displacement));
    length += 4;
  }
  out.base = reinterpret_cast<uint8_t*>(address);
  out.length += length;
}

bool decode(const ucontext_t& context, Instruction& out) {
  const auto* at = reinterpret_cast<const uint8_t*>(context.uc_mcontext.gregs[REG_RIP]);
  if (at[0] != 0xc4 || (at[1] & 0x1fU) != 2 || (at[2] & 0x84U) != 0) return false;
  const unsigned extension = ~static_cast<unsigned>(at[1]) >> 5;  // R X B
  out.prefix = at[2] & 3U;
  out.vvvv = ~(static_cast<unsigned>(at[2]) >> 3) & 15U;
  out.opcode = at[3];
  out.reg = at[4] >> 3 & 7U;
  out.rm = at[4] & 7U;
  out.memory = at[4] >> 6 != 3;
  out.length = 4;
  if (out.memory)
    decode_memory(context, at + 4, extension, out);
  else
    ++out.length;
  return true;
}

void configure(const uint8_t* from) {
  bool expected = from[0] == 1 && from[1] == 0;
  for (int tile = 0; tile < 16; ++tile) {
    uint16_t bytes = 0;
    std::memcpy(&bytes, from + 16 + 2 * tile, 2);
    expected = expected && bytes == (tile < 8 ? 64 : 0) && from[48 + tile] == (tile < 8 ? 16 : 0);
  }
  if (!expected) std::abort();
  registers.configured = true;
  registers.tiles = {};
}

float number(uint32_t bits) { return std::bit_cast<float>(bits); }

void multiply(Tile& sum, const Tile& a, const Tile& b) {
  for (size_t m = 0; m < 16; ++m) {
    for (size_t n = 0; n < 16; ++n) {
      float even = 0, odd = 0;
      for (size_t p = 0; p < 16; ++p) {
        even += number(a[m][p] << 16) * number(b[p][n] << 16);
        odd += number(a[m][p] & 0xffff0000U) * number(b[p][n] & 0xffff0000U);
      }
      sum[m][n] = std::bit_cast<uint32_t>(number(sum[m][n]) + (even + odd));
    }
  }
}

void move_tile(const Instruction& in, bool store) {
  for (int64_t row = 0; row < 16; ++row) {
    uint8_t* memory = in.base + row * in.index;
    auto& held = registers.tiles[in.reg][static_cast<size_t>(row)];
    if (store)
      std::memcpy(memory, held.data(), 64);
    else
      std::memcpy(held.data(), memory, 64);
  }
}

/// Prefixes: 0 none, 1 66, 2 F3, 3 F2.
bool execute(const Instruction& in) {
  const bool settings = in.opcode == 0x49 && in.prefix == 0;
  if (settings && in.memory) {
    configure(in.base);
    return true;
  }
  if (!registers.configured) return false;
  if (settings) {
    registers.configured = false;
  } else if (in.opcode == 0x49 && in.prefix == 3) {
    registers.tiles[in.reg] = {};
  } else if (in.opcode == 0x4b && (in.prefix == 3 || in.prefix == 2)) {
    move_tile(in, in.prefix == 2);
  } else if (in.opcode == 0x5c && in.prefix == 2 && in.vvvv < 8) {
    multiply(registers.tiles[in.reg], registers.tiles[in.rm], registers.tiles[in.vvvv]);
  } else {
    return false;
  }
  return true;
}

void on_refused(int, siginfo_t*, void* where) {
  auto& context = *static_cast<ucontext_t*>(where);
  Instruction instruction;
  if (!decode(context, instruction) || !execute(instruction)) std::abort();
  context.uc_mcontext.gregs[REG_RIP] += instruction.length;
  ++count;
}

}  // namespace

EmulatedTiles::EmulatedTiles() {
  count = 0;
  struct sigaction action = {};
  action.sa_sigaction = on_refused;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGILL, &action, &before_);
}

EmulatedTiles::~EmulatedTiles() { sigaction(SIGILL, &before_, nullptr); }

int64_t EmulatedTiles::instructions() { return count; }

}  // namespace strait::kernel

#endif
