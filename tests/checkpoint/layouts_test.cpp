// Checkpoints of any layout, matrices split over x and y included, are loaded into any other.
#include <gmock/gmock.h>

#include <numeric>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/layout/layout.h"
#include "tests/checkpoint/example_run.h"
#include "tests/layout/split_models.h"

namespace strait::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// A mesh, and the hops that cut the optimizer's state over its data ranks.
struct Grid {
  MeshAxes axes;
  std::vector<int64_t> hops;
  int64_t ranks() const { return axes.x * axes.y * axes.z * axes.data * axes.stage; }
  Mesh mesh() const {
    MeshOptions options;
    options.axes = axes;
    return Mesh(options, ranks());
  }
};

const std::vector<Grid>& grids() {
  static const std::vector<Grid> all = {{{1, 1, 1, 1, 1, 1}, {}},     {{1, 1, 1, 1, 3, 1}, {3}},
                                        {{2, 1, 1, 1, 1, 1}, {}},     {{1, 2, 1, 1, 2, 1}, {2}},
                                        {{2, 2, 1, 1, 4, 1}, {2, 2}}, {{2, 1, 2, 1, 2, 2}, {2}}};
  return all;
}

class Layouts : public ::testing::TestWithParam<const char*> {
 protected:
  Layout layout_of(const Grid& grid) const {
    std::vector<int64_t> first_stage;
    for (size_t unit = 0; unit < model_.units.size(); ++unit)
      first_stage.push_back(static_cast<int64_t>(unit) % grid.axes.stage);
    return Layout(model_, grid.mesh(), first_stage);
  }
  StateRange whole(size_t unit, const std::pair<std::string, Dtype>& state) const {
    return {model_.units[unit].name, state.first, 0, model_.units[unit].elements, state.second};
  }
  /// The elements of `runs` of a state, packed.
  static std::vector<std::byte> packed(const StateRange& range, const ElementRuns& runs) {
    const int64_t size = dtype_bytes(range.dtype);
    std::vector<std::byte> bytes(static_cast<size_t>(num_elements(runs) * size));
    pack(runs, size, example_bytes(5, range), bytes);
    return bytes;
  }
  /// What one rank writes.
  RankRecord write(const std::string& folder, const Grid& grid, int64_t rank) const {
    const Layout layout = layout_of(grid);
    std::vector<std::vector<std::byte>> memory;
    std::vector<ShardView> views;
    for (size_t unit = 0; unit < model_.units.size(); ++unit)
      for (const auto& state : example_states()) {
        const auto id = static_cast<int64_t>(unit);
        const Range own = layout.written(id, rank, grid.hops);
        for (const LocalPiece& piece : layout.written_pieces(id, rank, own)) {
          memory.push_back(packed(whole(unit, state), piece.runs));
          views.push_back({with_runs(whole(unit, state), piece.runs), memory.back().data()});
        }
      }
    return write_rank_file(folder, rank, views);
  }
  std::string save(const Grid& grid, int64_t step) const {
    const std::string folder = begin_save(run_.path(), step);
    Manifest manifest = example_manifest(step, grid.ranks(), 5);
    manifest.units = unit_records(model_);
    for (int64_t rank = 0; rank < grid.ranks(); ++rank) manifest.add(write(folder, grid, rank));
    return publish(folder, manifest);
  }
  void expect_loads(const CheckpointReader& reader, const Grid& grid) const {
    const Layout layout = layout_of(grid);
    for (int64_t rank = 0; rank < grid.ranks(); ++rank) {
      std::vector<StateRange> ranges;
      std::vector<std::vector<std::byte>> memory, want;
      for (size_t unit = 0; unit < model_.units.size(); ++unit)
        for (const auto& state : example_states()) {
          const auto id = static_cast<int64_t>(unit);
          const ElementRuns runs = layout.pieces(id, rank, layout.held(id, rank, grid.hops));
          ranges.push_back(with_runs(whole(unit, state), runs));
          want.push_back(packed(whole(unit, state), runs));
          memory.emplace_back(want.back().size());
        }
      std::vector<LoadRequest> requests;
      for (size_t i = 0; i < ranges.size(); ++i) requests.push_back({ranges[i], memory[i]});
      reader.load(requests);
      EXPECT_EQ(memory, want) << "rank " << rank << " of " << grid.ranks();
    }
  }

  const ModelShape model_ = split_model(GetParam());
  const TemporaryFolder run_;
};

TEST_P(Layouts, AnyIntoAnyOther) {
  for (size_t saved = 0; saved < grids().size(); ++saved) {
    const std::string path = save(grids()[saved], static_cast<int64_t>(saved));
    for (const Grid& grid : grids()) {
      const CheckpointReader reader(path);
      expect_loads(reader, grid);
      expect_loads(reader, grid);  // from files that are checked by now
    }
  }
}

// Those who know the first format only read what it can say.
TEST_P(Layouts, OnlySplitMatricesNeedTheSecondFormat) {
  for (size_t i = 0; i < grids().size(); ++i) {
    const std::string path = save(grids()[i], static_cast<int64_t>(i));
    const std::string text = read_file(path + "/manifest.json");
    const bool split = grids()[i].axes.x * grids()[i].axes.y > 1;
    EXPECT_EQ(text.find("\"strait.checkpoint/1\"") == std::string::npos, split);
    EXPECT_EQ(text.find("\"runs\"") != std::string::npos, split);
    EXPECT_EQ(manifest_text(parse_manifest(text, path)), text);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Layouts, ::testing::Values("gpt2", "llama"));

/// Numbers whose sums over a few senders are exact in fp32.
float residual_of(int64_t sender, int64_t element) {
  return static_cast<float>((sender * 131 + element * 17) % 4093) / 256.0f;
}

/// Two hops of error feedback: the first encodes whole local units, the second what the first
/// leaves.
class Residuals : public ::testing::TestWithParam<const char*> {
 protected:
  struct Held {
    int64_t sender = 0;
    ElementRuns runs;
    std::vector<float> values;
  };
  /// What the ranks of a grid hold of a unit's residual of `hop`: each element of a sender on one
  /// rank.
  static std::vector<Held> shares(const Layout& layout, const Grid& grid, int64_t unit,
                                  size_t hop) {
    const std::vector<int64_t> inside(grid.hops.begin(),
                                      grid.hops.begin() + static_cast<std::ptrdiff_t>(hop));
    std::vector<Held> all;
    for (int64_t rank = 0; rank < grid.ranks(); ++rank)
      for (const LocalPiece& piece :
           layout.written_pieces(unit, rank, layout.held(unit, rank, inside)))
        all.push_back({layout.position(rank), piece.runs, {}});
    for (Held& held : all)
      for_each_run(held.runs, [&](int64_t at, int64_t, int64_t length) {
        for (int64_t i = 0; i < length; ++i)
          held.values.push_back(residual_of(held.sender, at + i));
      });
    return all;
  }
  StateRange state_of(int64_t unit, size_t hop) const {
    return {model_.units[static_cast<size_t>(unit)].name, "residual/" + std::to_string(hop)};
  }
  std::string save(const Grid& grid, bool with_residuals = true) const {
    const Layout layout(model_, grid.mesh());
    const std::string folder = begin_save(run_.path(), 1);
    Manifest manifest = example_manifest(1, grid.ranks(), 5);
    manifest.units = unit_records(model_);
    for (size_t hop = 0; with_residuals && hop < grid.hops.size(); ++hop)
      for (int64_t unit = 0; unit < 2; ++unit)
        for (const Held& held : shares(layout, grid, unit, hop)) {
          StateRange range = with_runs(state_of(unit, hop), held.runs);
          range.sender = held.sender;
          const auto file = static_cast<int64_t>(manifest.files.size());
          manifest.add(write_rank_file(folder, file, {{range, held.values.data()}}));
        }
    return publish(folder, manifest);
  }
  /// Loads every share of a grid.
  std::vector<Held> load(const CheckpointReader& reader, const Grid& grid, int64_t unit,
                         size_t hop) const {
    std::vector<Held> all = shares(Layout(model_, grid.mesh()), grid, unit, hop);
    std::vector<SenderShare> senders;
    for (const Held& held : all) senders.push_back({held.sender, held.runs});
    for (size_t own = 0; own < all.size(); ++own)
      load_residual(reader, state_of(unit, hop), senders[own], senders, all[own].values);
    return all;
  }
  /// Sum over the senders, by element.
  std::vector<double> sums(const std::vector<Held>& all, int64_t unit) const {
    std::vector<double> sum(static_cast<size_t>(model_.units[static_cast<size_t>(unit)].elements));
    for (const Held& held : all)
      for_each_run(held.runs, [&](int64_t at, int64_t packed, int64_t length) {
        for (int64_t i = 0; i < length; ++i)
          sum[static_cast<size_t>(at + i)] += held.values[static_cast<size_t>(packed + i)];
      });
    return sum;
  }

  const ModelShape model_ = split_model(GetParam());
  const TemporaryFolder run_;
};

TEST_P(Residuals, TheSameSendersGetTheirOwn) {
  const Grid grid{{1, 1, 1, 1, 4, 1}, {2, 2}};
  const Grid split{{2, 1, 1, 1, 4, 1}, {2, 2}};
  for (const auto& [saved, loaded] : {std::pair{grid, grid}, std::pair{split, split}}) {
    const CheckpointReader reader(save(saved));
    for (int64_t unit = 0; unit < 2; ++unit)
      for (size_t hop = 0; hop < 2; ++hop) {
        const auto want = shares(Layout(model_, loaded.mesh()), loaded, unit, hop);
        const auto got = load(reader, loaded, unit, hop);
        for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i].values, want[i].values);
      }
  }
}

// x alone does not change who sends: the first hop encodes whole units.
TEST_P(Residuals, MatricesMayBeSplitOtherwise) {
  const Grid whole{{1, 1, 1, 1, 4, 1}, {4}}, split{{2, 2, 1, 1, 4, 1}, {4}};
  for (const auto& [saved, loaded] : {std::pair{whole, split}, std::pair{split, whole}}) {
    const CheckpointReader reader(save(saved));
    const auto want = shares(Layout(model_, loaded.mesh()), loaded, 1, 0);
    const auto got = load(reader, loaded, 1, 0);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i].values, want[i].values);
  }
}

// Each new sender gets old sum / new count: what was owed stays owed.
TEST_P(Residuals, OtherSendersShareTheSum) {
  const Grid four{{1, 1, 1, 1, 4, 1}, {2, 2}};
  const CheckpointReader reader(save(four));
  for (const Grid& grid : {Grid{{1, 1, 1, 1, 2, 1}, {1, 2}}, Grid{{1, 1, 1, 1, 8, 1}, {4, 2}},
                           Grid{{2, 1, 1, 1, 2, 1}, {2, 1}}, Grid{{1, 1, 1, 1, 1, 1}, {1, 1}}})
    for (int64_t unit = 0; unit < 2; ++unit)
      for (size_t hop = 0; hop < 2; ++hop) {
        const auto old_ones = shares(Layout(model_, four.mesh()), four, unit, hop);
        const auto new_ones = load(reader, grid, unit, hop);
        EXPECT_EQ(sums(new_ones, unit), sums(old_ones, unit)) << grid.ranks() << " hop " << hop;
        for (const Held& held : new_ones)
          if (held.runs == new_ones[0].runs) {
            EXPECT_EQ(held.values, new_ones[0].values);
          }
      }
}

TEST_P(Residuals, AreZeroWhereNoneWereSaved) {
  const CheckpointReader reader(save({{1, 1, 1, 1, 2, 1}, {2}}, false));
  EXPECT_TRUE(reader.senders_of({"blocks.0", "residual/0"}).empty());
  for (const Held& held : load(reader, {{1, 1, 1, 1, 2, 1}, {2}}, 1, 0))
    EXPECT_THAT(held.values, ::testing::Each(0.0f));
  std::vector<float> memory(4);
  EXPECT_THAT(message_of<UserError>([&] {
                reader.load({"blocks.0", "residual/0", 0, 4, Dtype::kFloat32},
                            std::as_writable_bytes(std::span(memory)));
              }),
              HasSubstr("no state residual/0"));
}

INSTANTIATE_TEST_SUITE_P(Families, Residuals, ::testing::Values("gpt2", "llama"));

TEST(Values, AreSavedAndLoadedByName) {
  const TemporaryFolder run;
  const std::vector<double> counters = {7, 65536, 3};
  const std::string folder = begin_save(run.path(), 1);
  Manifest manifest = example_manifest(1, 1, 5);
  manifest.values = {{"counters", 3}};
  const StateRange range{"", "counters", 0, 3, Dtype::kFloat64};
  manifest.add(write_rank_file(folder, 0, {{range, counters.data()}}));
  const CheckpointReader reader(publish(folder, manifest));
  std::vector<double> loaded(3);
  reader.load(range, std::as_writable_bytes(std::span(loaded)));
  EXPECT_EQ(loaded, counters);
  EXPECT_THAT(message_of<UserError>([&] {
                reader.load({"", "counter", 0, 3, Dtype::kFloat64},
                            std::as_writable_bytes(std::span(loaded)));
              }),
              AllOf(HasSubstr("no value counter"), HasSubstr("nearest is counters")));
  manifest.values = {{"counters", 4}};
  EXPECT_THAT(message_of<UserError>([&] { require_full_coverage(manifest, "m"); }),
              HasSubstr("[3, 4) of counters of the run"));
}

}  // namespace
}  // namespace strait::checkpoint
