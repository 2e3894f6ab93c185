#include "strait/shape/element_runs.h"

#include <gtest/gtest.h>

#include <numeric>

#include "strait/base/random.h"

namespace strait {
namespace {

/// Every element of the runs, in packed order.
std::vector<int64_t> elements_of(const ElementRuns& runs) {
  std::vector<int64_t> elements;
  for_each_run(runs, [&](int64_t at, int64_t packed, int64_t length) {
    EXPECT_EQ(packed, static_cast<int64_t>(elements.size()));
    for (int64_t i = 0; i < length; ++i) elements.push_back(at + i);
  });
  EXPECT_EQ(num_elements(runs), static_cast<int64_t>(elements.size()));
  return elements;
}

/// The plain form: every index of the box, row-major.
std::vector<int64_t> box_elements(const std::vector<int64_t>& dims, const Box& box) {
  std::vector<int64_t> elements = {0};
  for (size_t d = 0; d < dims.size(); ++d) {
    std::vector<int64_t> deeper;
    for (const int64_t before : elements)
      for (const DimRange& range : box[d])
        for (int64_t i = range.begin; i < range.end; ++i) deeper.push_back(before * dims[d] + i);
    elements = std::move(deeper);
  }
  return elements;
}

struct BoxCase {
  std::vector<int64_t> dims;
  Box box;
  size_t entries;
};

const std::vector<BoxCase>& cases() {
  static const std::vector<BoxCase> all = {
      {{}, {}, 1},
      {{7}, {{{0, 7}}}, 1},
      {{7}, {{{2, 5}}}, 1},
      {{12}, {{{0, 2}, {4, 6}, {8, 10}}}, 3},             // a third of q, k, v each
      {{6, 5}, {{{0, 6}}, {{0, 5}}}, 1},                  // whole
      {{6, 5}, {{{2, 4}}, {{0, 5}}}, 1},                  // rows
      {{6, 5}, {{{0, 1}, {2, 3}, {4, 5}}, {{0, 5}}}, 3},  // rows of parts
      {{6, 5}, {{{0, 6}}, {{1, 3}}}, 1},                  // columns
      {{6, 5}, {{{2, 4}}, {{1, 3}}}, 1},                  // rows and columns
      {{6, 6}, {{{0, 1}, {3, 4}}, {{3, 6}}}, 2},          // rows of parts, columns
      {{3, 8}, {{{0, 3}}, {{0, 2}, {4, 6}}}, 6},          // columns of parts
      {{1, 5}, {{{0, 1}}, {{1, 3}}}, 1},
      {{3, 4, 5}, {{{0, 3}}, {{1, 3}}, {{0, 5}}}, 1},
      {{3, 4, 5}, {{{0, 3}}, {{0, 4}}, {{2, 4}}}, 1},
      {{3, 4, 5}, {{{1, 3}}, {{1, 3}}, {{2, 4}}}, 2},
      {{2, 0, 3}, {{{0, 2}}, {{0, 0}}, {{0, 3}}}, 0}};
  return all;
}

TEST(ElementRuns, BoxesAreTheElementsOfThePlainForm) {
  for (const BoxCase& c : cases()) {
    const ElementRuns runs = box_runs(c.dims, c.box);
    EXPECT_EQ(elements_of(runs), box_elements(c.dims, c.box));
    EXPECT_EQ(runs.size(), c.entries);
    for (const ElementRun& run : runs) EXPECT_EQ(run.count == 1, run.stride == 0);
  }
}

TEST(ElementRuns, SlicesAreSlicesOfTheElements) {
  for (const BoxCase& c : cases()) {
    const ElementRuns runs = box_runs(c.dims, c.box);
    const std::vector<int64_t> whole = elements_of(runs);
    const auto size = static_cast<int64_t>(whole.size());
    for (int64_t begin = 0; begin <= size; ++begin)
      for (int64_t end = begin; end <= size; ++end) {
        const ElementRuns part = slice(runs, begin, end);
        EXPECT_EQ(elements_of(part),
                  std::vector<int64_t>(whole.begin() + begin, whole.begin() + end))
            << begin << " " << end;
        EXPECT_LE(part.size(), runs.size() + 2);
        EXPECT_EQ(elements_of(shifted(part, 9)).size(), elements_of(part).size());
      }
  }
}

TEST(ElementRuns, PackedAndUnpacked) {
  for (const BoxCase& c : cases()) {
    const ElementRuns runs = box_runs(c.dims, c.box);
    const auto size = static_cast<size_t>(
        std::accumulate(c.dims.begin(), c.dims.end(), int64_t{1}, std::multiplies<>()));
    std::vector<int16_t> whole(size), back(size, -1);
    std::iota(whole.begin(), whole.end(), int16_t{0});
    std::vector<int16_t> packed(static_cast<size_t>(num_elements(runs)));
    pack(runs, 2, std::as_bytes(std::span(whole)), std::as_writable_bytes(std::span(packed)));
    const std::vector<int64_t> elements = box_elements(c.dims, c.box);
    EXPECT_EQ(std::vector<int64_t>(packed.begin(), packed.end()), elements);
    unpack(runs, 2, std::as_bytes(std::span(packed)), std::as_writable_bytes(std::span(back)));
    std::vector<int16_t> want(size, -1);
    for (const int64_t element : elements)
      want[static_cast<size_t>(element)] = static_cast<int16_t>(element);
    EXPECT_EQ(back, want);
  }
}

TEST(ElementRuns, NeighboursBecomeOneRange) {
  ElementRuns runs;
  append(runs, {3, 2, 1, 0});
  append(runs, {5, 4, 1, 0});
  append(runs, {9, 0, 1, 0});
  append(runs, {9, 1, 3, 2});
  EXPECT_EQ(runs, (ElementRuns{{3, 6, 1, 0}, {9, 1, 3, 2}}));
  EXPECT_EQ(runs.back().end(), 14);
}

}  // namespace
}  // namespace strait
