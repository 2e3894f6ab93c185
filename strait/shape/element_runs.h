// Elements of a flat buffer that are not one range: runs at equal distances. A box of a matrix is
// such runs of the matrix. Layouts, initial values and checkpoints speak of elements in this way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace strait {

/// `count` runs of `length` elements, each `stride` after the one before it; they ascend and do not
/// overlap. One run has stride 0.
struct ElementRun {
  int64_t begin = 0;
  int64_t length = 0;
  int64_t count = 1;
  int64_t stride = 0;
  int64_t elements() const { return length * count; }
  int64_t end() const { return begin + (count - 1) * stride + length; }
  bool operator==(const ElementRun&) const = default;
};

/// Runs of a whole buffer in the order in which they are packed, one behind the other, in a part of
/// it.
using ElementRuns = std::vector<ElementRun>;

int64_t num_elements(const ElementRuns& runs);

/// Appends `run`, joined to the last one where that gives one range. Empty runs are left out.
void append(ElementRuns& runs, ElementRun run);
void append(ElementRuns& runs, const ElementRuns& more);

/// The runs behind the packed positions [begin, end). Cost: O(runs).
ElementRuns slice(const ElementRuns& runs, int64_t begin, int64_t end);

/// The runs of a buffer that begins `offset` elements earlier.
ElementRuns shifted(ElementRuns runs, int64_t offset);

/// A box of a row-major array: per dim the indices [begin, end) that it holds, in packed order.
struct DimRange {
  int64_t begin = 0, end = 0;
};
using Box = std::vector<std::vector<DimRange>>;

/// Runs of a box of an array of `dims`, packed row-major. One range where the box is one, else one
/// entry for each combination of ranges that the box has beside the innermost cut dim and the one
/// before it.
ElementRuns box_runs(const std::vector<int64_t>& dims, const Box& box);

/// Calls visit(position in the whole, position in the packed part, length) for every single run.
template <class Visit>
void for_each_run(const ElementRuns& runs, Visit&& visit) {
  int64_t packed = 0;
  for (const ElementRun& run : runs)
    for (int64_t k = 0; k < run.count; ++k, packed += run.length)
      visit(run.begin + k * run.stride, packed, run.length);
}

/// Copies the runs of `whole` into `packed`, which is exactly as long as they are.
void pack(const ElementRuns& runs, int64_t element_bytes, std::span<const std::byte> whole,
          std::span<std::byte> packed);

/// The inverse; elements of `whole` outside of the runs keep their values.
void unpack(const ElementRuns& runs, int64_t element_bytes, std::span<const std::byte> packed,
            std::span<std::byte> whole);

}  // namespace strait
