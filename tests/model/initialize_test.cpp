// Initial values of what a rank holds of matrices that are split over x and y.
#include <gtest/gtest.h>

#include "strait/base/errors.h"
#include "strait/layout/layout.h"
#include "strait/model/block.h"
#include "tests/layout/split_models.h"

namespace strait::model {
namespace {

template <class T>
std::vector<T> initial(const UnitShape& unit, const ElementRuns& runs) {
  std::vector<T> values(static_cast<size_t>(num_elements(runs)));
  initialize(unit, 11, sizeof(T) == 8 ? Dtype::kFloat64 : Dtype::kFloat32, runs, values.data());
  return values;
}

template <class T>
void expect_slices_of_the_whole(const std::string& family) {
  ModelShape model = split_model(family);
  MeshOptions options;
  options.axes = {2, 2, 1, 1, 3, 1};
  const Mesh mesh(options, 12);
  const Layout layout(model, mesh);
  for (size_t unit = 0; unit < model.units.size(); ++unit) {
    const UnitShape& shape = model.units[unit];
    const std::vector<T> whole = initial<T>(shape, {{0, shape.elements, 1, 0}});
    for (int64_t rank = 0; rank < mesh.ranks(); ++rank) {
      const auto id = static_cast<int64_t>(unit);
      const ElementRuns runs = layout.pieces(id, rank, layout.held(id, rank, {3}));
      const std::vector<T> local = initial<T>(shape, runs);
      for_each_run(runs, [&](int64_t at, int64_t packed, int64_t length) {
        for (int64_t i = 0; i < length; ++i)
          ASSERT_EQ(local[static_cast<size_t>(packed + i)], whole[static_cast<size_t>(at + i)])
              << shape.name << " element " << at + i << " on rank " << rank;
      });
    }
  }
}

TEST(InitializeRuns, AreSlicesOfTheWhole) {
  for (const char* family : {"gpt2", "llama"}) {
    expect_slices_of_the_whole<float>(family);
    expect_slices_of_the_whole<double>(family);
  }
}

// More than one thread's share, in runs shorter than a share.
TEST(InitializeRuns, ManyShortRuns) {
  const ModelShape model = gpt2_shape({1, 2, 2, 128, 256, 8, true, 0.0, true}, 31);
  const UnitShape& unit = model.units[1];
  const int64_t rows = unit.elements / 128;
  const std::vector<double> columns = initial<double>(unit, {{32, 32, rows, 128}});
  for (int64_t row = 0; row < rows; ++row) {
    const std::vector<double> want = initial<double>(unit, {{row * 128 + 32, 32, 1, 0}});
    const auto got = columns.begin() + row * 32;
    ASSERT_EQ(std::vector<double>(got, got + 32), want) << "row " << row;
  }
}

TEST(InitializeRuns, OutsideOfTheUnitIsRefused) {
  const ModelShape model = split_model("gpt2");
  EXPECT_THROW(initial<float>(model.units[1], {{model.units[1].elements - 4, 2, 3, 2}}),
               InternalError);
}

}  // namespace
}  // namespace strait::model
