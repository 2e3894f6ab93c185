#include "strait/layout/layout.h"

#include <gmock/gmock.h>

#include <map>

#include "strait/base/errors.h"
#include "tests/layout/split_models.h"

namespace strait {
namespace {

Mesh mesh_of(int64_t x, int64_t y, int64_t z, int64_t data, int64_t stage = 1) {
  MeshOptions options;
  options.axes = {x, y, z, 1, data, stage};
  return Mesh(options, x * y * z * data * stage);
}

const std::vector<Mesh>& meshes() {
  static const std::vector<Mesh> all = {mesh_of(1, 1, 1, 1), mesh_of(1, 1, 1, 6),
                                        mesh_of(2, 1, 1, 1), mesh_of(1, 2, 1, 3),
                                        mesh_of(2, 2, 2, 2), mesh_of(2, 1, 1, 3, 2)};
  return all;
}

/// Hops that cut the ranges of `positions` ranks, innermost first.
std::vector<std::vector<int64_t>> hops_of(int64_t positions) {
  std::vector<std::vector<int64_t>> all = {{}};
  if (positions > 1) all.push_back({positions});
  if (positions % 2 == 0) all.push_back({2});
  if (positions % 2 == 0 && positions > 2) all.push_back({2, positions / 2});
  return all;
}

/// Indices of a dim of `extent` that a rank holds of it, in order. The plain form of a split.
std::vector<int64_t> indices(int64_t extent, const AxisSplit& split, int64_t size,
                             int64_t coordinate) {
  const std::vector<int64_t> parts = split.parts.empty() ? std::vector{extent} : split.parts;
  std::vector<int64_t> held;
  int64_t begin = 0;
  for (const int64_t part : parts) {
    for (int64_t i = 0; i < part; ++i)
      if (i / (part / size) == coordinate) held.push_back(begin + i);
    begin += part;
  }
  return held;
}

/// The same of dim `dim` of a parameter.
std::vector<int64_t> indices_of(const ParameterShape& parameter, int dim, const Mesh& mesh,
                                int64_t rank) {
  const int64_t extent = parameter.dims[static_cast<size_t>(dim)];
  for (const auto& [axis, split] :
       {std::pair{"x", parameter.split.x}, std::pair{"y", parameter.split.y}})
    if (split.dim == dim)
      return indices(extent, split, mesh.axis(axis).size, mesh.coordinate(rank, axis));
  return indices(extent, {}, 1, 0);
}

/// Elements of the logical unit in the order of a rank's local one: element by element.
std::vector<int64_t> local_elements(const UnitShape& logical, const UnitShape& local,
                                    const Mesh& mesh, int64_t rank) {
  std::vector<int64_t> elements(static_cast<size_t>(local.elements), -1);
  for (const ParameterShape& parameter : logical.parameters) {
    std::vector<int64_t> held = {parameter.offset};
    for (int dim = 0; dim < static_cast<int>(parameter.dims.size()); ++dim) {
      int64_t row = 1;
      for (size_t d = static_cast<size_t>(dim) + 1; d < parameter.dims.size(); ++d)
        row *= parameter.dims[d];
      std::vector<int64_t> deeper;
      for (const int64_t before : held)
        for (const int64_t i : indices_of(parameter, dim, mesh, rank))
          deeper.push_back(before + i * row);
      held = std::move(deeper);
    }
    const int64_t offset = local.parameter(parameter.name).offset;
    for (size_t i = 0; i < held.size(); ++i) elements[static_cast<size_t>(offset) + i] = held[i];
  }
  return elements;
}

std::vector<int64_t> elements_of(const ElementRuns& runs) {
  std::vector<int64_t> elements;
  for_each_run(runs, [&](int64_t at, int64_t, int64_t length) {
    for (int64_t i = 0; i < length; ++i) elements.push_back(at + i);
  });
  return elements;
}

class Layouts : public ::testing::TestWithParam<const char*> {
 protected:
  const ModelShape model_ = split_model(GetParam());
};

TEST_P(Layouts, PiecesAreThoseOfThePlainForm) {
  for (const Mesh& mesh : meshes()) {
    const Layout layout(model_, mesh);
    for (size_t unit = 0; unit < model_.units.size(); ++unit)
      for (int64_t rank = 0; rank < mesh.ranks(); ++rank) {
        const UnitShape& local = layout.local_shape().units[unit];
        const auto want = local_elements(model_.units[unit], local, mesh, rank);
        const auto id = static_cast<int64_t>(unit);
        EXPECT_EQ(elements_of(layout.pieces(id, rank, {0, local.elements})), want);
        for (const Range part : {Range{3, 3}, Range{0, 11}, Range{5, local.elements - 7}})
          EXPECT_EQ(elements_of(layout.pieces(id, rank, part)),
                    std::vector<int64_t>(want.begin() + part.begin, want.begin() + part.end));
      }
  }
}

// All ranks together write every element of every unit once, whatever the hops; and each group of
// replicas holds every element as often as there are replicas.
TEST_P(Layouts, EveryElementIsWrittenOnce) {
  for (const Mesh& mesh : meshes()) {
    std::vector<int64_t> first_stage;
    for (size_t unit = 0; unit < model_.units.size(); ++unit)
      first_stage.push_back(static_cast<int64_t>(unit) % mesh.axis("stage").size);
    const Layout layout(model_, mesh, first_stage);
    for (const std::vector<int64_t>& hops : hops_of(layout.positions()))
      for (size_t unit = 0; unit < model_.units.size(); ++unit) {
        std::vector<int> written(static_cast<size_t>(model_.units[unit].elements), 0);
        const auto id = static_cast<int64_t>(unit);
        for (int64_t rank = 0; rank < mesh.ranks(); ++rank) {
          const Range held = layout.held(id, rank, hops), own = layout.written(id, rank, hops);
          EXPECT_TRUE(own.size() == 0 || (held.begin <= own.begin && own.end <= held.end));
          std::vector<Range> counted;
          for (const LocalPiece& piece : layout.written_pieces(id, rank, own)) {
            EXPECT_EQ(piece.runs, layout.pieces(id, rank, piece.local));
            counted.push_back(piece.local);
            for (const int64_t i : elements_of(piece.runs)) ++written[static_cast<size_t>(i)];
          }
          EXPECT_EQ(layout.counted(id, rank, hops), counted) << "what is written is counted";
        }
        EXPECT_THAT(written, ::testing::Each(1)) << model_.units[unit].name;
      }
  }
}

TEST_P(Layouts, RangesOfMoreHopsLieInThoseOfFewer) {
  const Mesh mesh = mesh_of(2, 1, 2, 4);
  const Layout layout(model_, mesh);
  for (int64_t rank = 0; rank < mesh.ranks(); ++rank) {
    const Range inner = layout.held(1, rank, {2}), both = layout.held(1, rank, {2, 4});
    EXPECT_TRUE(inner.begin <= both.begin && both.end <= inner.end);
    EXPECT_EQ(inner.begin > 0, mesh.coordinate(rank, "z") == 1) << "z is the innermost hop";
  }
}

TEST_P(Layouts, WithoutSplitsNothingChanges) {
  for (const int64_t data : {1, 2, 3, 8}) {
    const Layout layout(model_, mesh_of(1, 1, 1, data));
    for (size_t unit = 0; unit < model_.units.size(); ++unit) {
      const UnitShape& want = model_.units[unit];
      const UnitShape& local = layout.local_shape().units[unit];
      ASSERT_EQ(local.parameters.size(), want.parameters.size());
      for (size_t i = 0; i < want.parameters.size(); ++i) {
        EXPECT_EQ(local.parameters[i].name, want.parameters[i].name);
        EXPECT_EQ(local.parameters[i].offset, want.parameters[i].offset);
        EXPECT_EQ(local.parameters[i].dims, want.parameters[i].dims);
      }
      for (int64_t rank = 0; rank < data; ++rank) {
        const auto id = static_cast<int64_t>(unit);
        const Range held = layout.held(id, rank, {data});
        EXPECT_EQ(held, shard_of(want.elements, data, data, rank));
        const ElementRuns runs = layout.pieces(id, rank, held);
        ElementRuns want_runs;
        append(want_runs, {held.begin, held.size(), 1, 0});
        EXPECT_EQ(runs, want_runs);
      }
    }
  }
}

TEST_P(Layouts, SectionsAreByAxesAndDecay) {
  const Layout layout(model_, mesh_of(2, 2, 1, 1));
  for (const UnitShape& unit : layout.local_shape().units) {
    int64_t end = 0;
    for (const Section& section : unit.sections) {
      EXPECT_EQ(section.begin, end);
      end = section.end;
      for (const ParameterShape& parameter : unit.parameters) {
        if (parameter.offset < section.begin || parameter.offset >= section.end) continue;
        EXPECT_EQ(parameter.weight_decay, section.weight_decay) << parameter.name;
        EXPECT_EQ(parameter.split.x.dim >= 0, section.split_x) << parameter.name;
        EXPECT_EQ(parameter.split.y.dim >= 0, section.split_y) << parameter.name;
      }
    }
    EXPECT_EQ(end, unit.elements);
  }
  // Matrices over both axes; biases of qkv and up over x; norms, and biases of output and down, on
  // all.
  EXPECT_EQ(layout.local_shape().units[1].sections.size(), 3u);
}

INSTANTIATE_TEST_SUITE_P(Families, Layouts, ::testing::Values("gpt2", "llama"));

TEST(Layout, UnevenSplitsAreRefused) {
  ModelShape model = split_model("gpt2");
  try {
    const Layout layout(model, mesh_of(1, 5, 1, 1));
    ADD_FAILURE() << "24 columns over 5";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), ::testing::AllOf(::testing::HasSubstr("mesh.axes.y = 5"),
                                               ::testing::HasSubstr("model.shape.width = 24"),
                                               ::testing::HasSubstr("valid value is 1")));
    EXPECT_EQ(error.place().key, "mesh.axes.y");
  }
  // 12 rows of keys would go over 4 ranks, but there are two heads of them.
  EXPECT_THROW(Layout(split_model("llama"), mesh_of(4, 1, 1, 1)), UserError);
  for (const AxisSplit& wrong : {AxisSplit{2, {}}, AxisSplit{0, {3, 4}}, AxisSplit{1, {}}}) {
    ModelShape broken = model;
    broken.units[1].parameters[0].split.y = {1, {}};
    broken.units[1].parameters[0].split.x = wrong;
    EXPECT_THROW(Layout(broken, mesh_of(2, 2, 1, 1)), InternalError) << wrong.dim;
  }
}

TEST(Layout, RangesOutsideAreRefused) {
  const Layout layout(split_model("gpt2"), mesh_of(2, 1, 1, 1));
  const int64_t elements = layout.local_elements(1);
  EXPECT_THROW(layout.pieces(1, 0, {0, elements + 1}), InternalError);
  EXPECT_THROW(layout.pieces(1, 0, {-1, 2}), InternalError);
}

}  // namespace
}  // namespace strait
