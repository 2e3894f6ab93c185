#include "strait/shape/element_runs.h"

#include <algorithm>
#include <cstring>

#include "strait/base/errors.h"

namespace strait {
namespace {

/// Positions [begin, end) of one entry: the rest of a first run, whole runs, the head of a last
/// one.
void append_slice(ElementRuns& out, const ElementRun& run, int64_t begin, int64_t end) {
  while (begin < end) {
    const int64_t k = begin / run.length, within = begin % run.length;
    const int64_t whole = within == 0 ? (end - begin) / run.length : 0;
    const int64_t length = whole > 0 ? run.length : std::min(run.length - within, end - begin);
    const int64_t count = std::max<int64_t>(whole, 1);
    append(out, {run.begin + k * run.stride + within, length, count, count > 1 ? run.stride : 0});
    begin += length * count;
  }
}

/// Runs of dims [dim, ...) of a box, in elements from the start of a row of dim - 1.
ElementRuns inner_runs(const std::vector<int64_t>& dims, const Box& box, size_t dim);

/// Indices [range) of a dim whose rows are `row` elements apart and hold `inner`.
void append_rows(ElementRuns& out, DimRange range, int64_t row, const ElementRuns& inner) {
  const int64_t rows = range.end - range.begin;
  const bool single = inner.size() == 1;
  if (single && inner[0].count == 1) {
    const ElementRun& run = inner[0];
    const int64_t begin = range.begin * row + run.begin;
    if (run.length == row) return append(out, {begin, rows * row, 1, 0});
    return append(out, {begin, run.length, rows, rows > 1 ? row : 0});
  }
  if (single && inner[0].count * inner[0].stride == row) {  // the same distance all along
    const ElementRun& run = inner[0];
    return append(out, {range.begin * row + run.begin, run.length, rows * run.count, run.stride});
  }
  for (int64_t i = range.begin; i < range.end; ++i)
    for (ElementRun run : inner) {
      run.begin += i * row;
      append(out, run);
    }
}

ElementRuns inner_runs(const std::vector<int64_t>& dims, const Box& box, size_t dim) {
  if (dim == dims.size()) return {{0, 1, 1, 0}};
  const ElementRuns inner = inner_runs(dims, box, dim + 1);
  int64_t row = 1;
  for (size_t d = dim + 1; d < dims.size(); ++d) row *= dims[d];
  ElementRuns out;
  for (const DimRange& range : box[dim]) append_rows(out, range, row, inner);
  return out;
}

}  // namespace

int64_t num_elements(const ElementRuns& runs) {
  int64_t sum = 0;
  for (const ElementRun& run : runs) sum += run.elements();
  return sum;
}

void append(ElementRuns& runs, ElementRun run) {
  if (run.elements() <= 0) return;
  if (!runs.empty() && runs.back().count == 1 && run.count == 1 && runs.back().end() == run.begin) {
    runs.back().length += run.length;
  } else {
    runs.push_back(run);
  }
}

void append(ElementRuns& runs, const ElementRuns& more) {
  for (const ElementRun& run : more) append(runs, run);
}

ElementRuns slice(const ElementRuns& runs, int64_t begin, int64_t end) {
  ElementRuns out;
  int64_t position = 0;
  for (const ElementRun& run : runs) {
    const int64_t first = std::max(begin - position, int64_t{0});
    append_slice(out, run, first, std::min(end - position, run.elements()));
    position += run.elements();
  }
  return out;
}

ElementRuns shifted(ElementRuns runs, int64_t offset) {
  for (ElementRun& run : runs) run.begin += offset;
  return runs;
}

ElementRuns box_runs(const std::vector<int64_t>& dims, const Box& box) {
  ensure(dims.size() == box.size(), "box_runs: a box of another number of dims");
  return inner_runs(dims, box, 0);
}

void pack(const ElementRuns& runs, int64_t element_bytes, std::span<const std::byte> whole,
          std::span<std::byte> packed) {
  for_each_run(runs, [&](int64_t at, int64_t position, int64_t length) {
    std::memcpy(packed.data() + position * element_bytes, whole.data() + at * element_bytes,
                static_cast<size_t>(length * element_bytes));
  });
}

void unpack(const ElementRuns& runs, int64_t element_bytes, std::span<const std::byte> packed,
            std::span<std::byte> whole) {
  for_each_run(runs, [&](int64_t at, int64_t position, int64_t length) {
    std::memcpy(whole.data() + at * element_bytes, packed.data() + position * element_bytes,
                static_cast<size_t>(length * element_bytes));
  });
}

}  // namespace strait
