// The kernel table's entries. A kernel is a named computation that programs call and that
// `program`, `runtime`, `sim` and `cost` know by its entry alone: operands with their access, typed
// attributes, cost and what bounds it. Its executor is registered elsewhere, where LibTorch may be
// seen (strait/runtime/executors.h). Entries are constants: an op points to one, a test may define
// its own.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "strait/base/dtype.h"
#include "strait/base/library_work.h"

namespace strait::program {

struct Program;
struct Op;
struct Index;

/// What an operation does to an operand.
enum class Access : uint8_t {
  kRead,    // reads it
  kWrite,   // overwrites what it sets and reads nothing of it; it may leave some elements alone
  kUpdate,  // reads it, then overwrites it
  kAdd,     // adds to it
};
/// "read", "write", "update", "add".
const char* access_name(Access access);

/// A set of accesses.
using AccessSet = uint8_t;
constexpr AccessSet only(Access access) {
  return static_cast<AccessSet>(1U << static_cast<int>(access));
}
inline constexpr AccessSet kReads = only(Access::kRead);
inline constexpr AccessSet kWrites = only(Access::kWrite);
inline constexpr AccessSet kUpdates = only(Access::kUpdate);
inline constexpr AccessSet kAdds = only(Access::kAdd);

/// How many operands of a program's op stand for one operand of the table.
enum class Count : uint8_t { kNone, kOne, kOptional, kAny };

/// An operand as the table states it; operands of an op name it by its place in the list (`slot`).
struct KernelOperand {
  const char* name = "";
  AccessSet access = kReads;
  Count count = Count::kOne;
  bool whole = true;  // the kernel touches all of it; otherwise a part that its attributes say
};

/// A range of small numbers, such as segments of a block.
struct IntegerRange {
  int64_t begin = 0, end = 0;
  bool operator==(const IntegerRange&) const = default;
};

/// Values of attributes are Index (affine in the loop variables), integers, numbers, ranges and
/// texts.
enum class AttributeType : uint8_t { kIndex, kInteger, kNumber, kRange, kText };
struct AttributeInfo {
  const char* name = "";
  AttributeType type = AttributeType::kInteger;
  bool printed = false;  // in the text of a program, after the kernel's name
};

/// What runs out first: sim and cost divide by that rate of the cluster.
enum class Bound : uint8_t {
  kNothing,   // takes no time worth counting
  kProducts,  // floating-point operations, at the model's rate in `dtype`, of attention at its own
  kMemory,    // bytes read and written
  kCodec,     // the same, at the rate of encoding and decoding
};

/// Of one execution on one rank.
struct KernelCost {
  double flops = 0;               // multiply-adds count two
  double attention_flops = 0;     // among them
  double weights = 0;             // numbers that products pass over, each time counted
  double bytes = 0;               // read and written in operands
  int64_t workspace_bytes = 0;    // that the runtime hands in
  LibraryWork library;            // what the executor leaves to a library; no calls: nothing
  Dtype dtype = Dtype::kFloat32;  // of the products
};

/// What an execution takes for itself while it runs.
inline int64_t bytes_beside_values(const KernelCost& cost) {
  return cost.workspace_bytes + cost.library.bytes;
}

/// An entry of the table.
struct Kernel {
  const char* name = "";
  Bound bound = Bound::kNothing;
  std::vector<KernelOperand> operands;
  std::vector<AttributeInfo> attributes;
  /// As a function of the sizes of the op's operands and its attributes; null = touches its
  /// operands and nothing else.
  KernelCost (*cost)(const Program&, const Op&, int64_t rank) = nullptr;
  /// Takes something from outside the program or gives it away: a second execution is not the
  /// first.
  bool outside = false;
};

/// Bytes of the operands that `op` touches as a whole: read or written once, updated or added to
/// twice. No kernel costs less (the verifier asks).
double touched_bytes(const Program& program, const Op& op, int64_t rank);

/// Cost of an op: its kernel's, or nothing for transfers and control. O(operands).
KernelCost cost_of(const Program& program, const Op& op, int64_t rank);

}  // namespace strait::program
