// Axes of the mesh that fit ranks, model and cluster, and the nearest size for those that do not.
#include "strait/config/check_mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "strait/base/errors.h"
#include "strait/shape/shape.h"
#include "strait/shape/unet.h"

namespace strait {
namespace {

using testing::HasSubstr;

Run run_of(int64_t x, int64_t data, int64_t stage) {
  Run run;
  run.model = model_preset("gpt2-124m");  // 12 heads
  run.mesh.axes.x = x;
  run.mesh.axes.data = data;
  run.mesh.axes.stage = stage;
  run.file = "run.toml";
  for (const char* key : {"mesh.axes.x", "mesh.axes.data", "mesh.axes.stage"})
    run.written[key] = {"run.toml", 4};
  return run;
}

void expect_refused(const std::function<void()>& check, const std::string& key,
                    const std::string& part) {
  try {
    check();
    FAIL() << "accepted; expected a problem of " << key;
  } catch (const UserError& error) {
    EXPECT_EQ(error.place().key, key);
    EXPECT_EQ(error.place().file, "run.toml");
    EXPECT_THAT(error.what(), HasSubstr(part));
    EXPECT_EQ(error.place().line, 4);
  }
}

TEST(CheckMesh, SizesMultiplyToTheRanks) {
  // Plain reference: the product, with any data for 0.
  for (const int64_t ranks : {1, 2, 4, 6, 8})
    for (const int64_t x : {1, 2, 3})
      for (const int64_t data : {0, 1, 2, 3})
        for (const int64_t stage : {1, 2}) {
          const strait::Run run = run_of(x, data, stage);
          const bool fits = data == 0 ? ranks % (x * stage) == 0 : x * data * stage == ranks;
          const auto check = [&] { check_mesh_sizes(run, ranks); };
          if (fits)
            EXPECT_NO_THROW(check()) << x << " " << data << " " << stage << " of " << ranks;
          else
            EXPECT_THROW(check(), UserError) << x << " " << data << " " << stage;
        }
}

/// One that is valid itself: a size that the ranks allow may be more than the model has.
TEST(CheckMesh, TheNearestSizeIsOneThatTheModelTakes) {
  expect_refused([] { check_mesh_sizes(run_of(1, 0, 8), 13); }, "mesh.axes.stage",
                 "the nearest valid value is 1");  // not 13 of 12 blocks
  expect_refused([] { check_mesh_sizes(run_of(1, 0, 15), 28); }, "mesh.axes.stage",
                 "the nearest valid value is 7");  // not 14
  expect_refused([] { check_pipeline(run_of(1, 0, 26)); }, "mesh.axes.stage",
                 "the nearest valid value is 2");  // as 26 does, it divides the ranks
  expect_refused([] { check_mesh_sizes(run_of(9, 0, 1), 40); }, "mesh.axes.x",
                 "the nearest valid value is 4");  // not 8 of 12 heads
  expect_refused([] { check_mesh_model(run_of(8, 0, 1), 8); }, "mesh.axes.x",
                 "ffn_width on the same ranks: 4");  // not 6
}

/// "" or why the axes of a run do not fit.
std::string misfit(const Run& run, int64_t ranks) {
  try {
    check_mesh_sizes(run, ranks);
    check_mesh_model(run, ranks);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

/// Plain reference: of the sizes that are accepted none is nearer than the one that is named.
void expect_named_size_is_nearest(Run run, int64_t MeshAxes::*axis, int64_t ranks) {
  const int64_t asked = run.mesh.axes.*axis;
  const std::string message = misfit(run, ranks);
  if (message.empty()) return;
  SCOPED_TRACE(message);
  int64_t nearest = 0;
  for (int64_t size = 1; size <= ranks; ++size) {
    run.mesh.axes.*axis = size;
    if (!misfit(run, ranks).empty()) continue;
    if (nearest == 0 || std::abs(size - asked) < std::abs(nearest - asked)) nearest = size;
  }
  EXPECT_EQ(message.substr(message.rfind(' ') + 1), std::to_string(nearest));
}

TEST(CheckMesh, TheNearestSizeDividesModelAndRanks) {
  strait::Run small = run_of(1, 0, 1);
  small.model.shape.heads = small.model.shape.kv_heads = 4;
  small.model.shape.width = 40;
  small.model.shape.ffn_width = 64;
  small.model.shape.vocabulary = 36;
  strait::Run unet = run_of(1, 0, 1);
  unet.model.family = kUnetFamily;
  unet.model.unet.channels = {16, 24};  // of 8 and 12 groups
  for (const strait::Run& model : {run_of(1, 0, 1), small, unet})
    for (int64_t MeshAxes::*axis : {&MeshAxes::x, &MeshAxes::y})
      for (int64_t ranks = 1; ranks <= 24; ++ranks)
        for (int64_t size = 1; size <= ranks + 1; ++size) {
          strait::Run run = model;
          run.mesh.axes.*axis = size;
          expect_named_size_is_nearest(run, axis, ranks);
        }
  small.mesh.axes.x = 3;
  EXPECT_THAT(misfit(small, 6), HasSubstr("ffn_width on the same ranks: 2"));
}

TEST(CheckMesh, TheNearestSizeIsNamed) {
  expect_refused([] { check_mesh_sizes(run_of(3, 0, 1), 8); }, "mesh.axes.x",
                 "mesh.axes.x = 3 does not divide 8 of the 8 ranks; the nearest valid value is 2");
  expect_refused([] { check_mesh_sizes(run_of(2, 0, 3), 8); }, "mesh.axes.stage",
                 "mesh.axes.stage = 3 does not divide 4 of the 8 ranks; the nearest valid value "
                 "is 2");
  expect_refused([] { check_mesh_sizes(run_of(2, 0, 5), 12); }, "mesh.axes.stage", "value is 6");
  expect_refused([] { check_mesh_sizes(run_of(2, 8, 2), 8); }, "mesh.axes.data",
                 "8 ranks and x = 2, stage = 2; the nearest valid value is 2 (or 0, the rest)");
  expect_refused([] { check_mesh_sizes(run_of(0, 0, 1), 4); }, "mesh.axes.x", "value is 1");
}

TEST(CheckMesh, EveryAxisTakesItsShareOfTheRanks) {
  for (int64_t MeshAxes::*axis : {&MeshAxes::y, &MeshAxes::z, &MeshAxes::sequence}) {
    strait::Run run = run_of(1, 3, 1);
    run.mesh.axes.*axis = 2;
    check_mesh_sizes(run, 6);
    EXPECT_THROW(check_mesh_sizes(run, 3), UserError);
  }
}

TEST(CheckMesh, AxisXDividesHeads) {
  check_mesh_model(run_of(4, 0, 1), 4);
  expect_refused([] { check_mesh_model(run_of(5, 0, 1), 5); }, "mesh.axes.x",
                 "heads = 12; nearest");
}

TEST(CheckMesh, NoAxisEndsWithinALevel) {
  ClusterOptions frontier;
  frontier.preset = "frontier";  // pairs, four of them a node
  check_mesh_levels(run_of(4, 0, 3), make_cluster(frontier, 48));
  expect_refused([&] { check_mesh_levels(run_of(3, 0, 1), make_cluster(frontier, 48)); },
                 "mesh.axes.x", "size is 2");
  expect_refused([&] { check_mesh_levels(run_of(1, 0, 4), make_cluster(frontier, 48)); },
                 "mesh.axes.stage", "size is 3");
}

}  // namespace
}  // namespace strait
