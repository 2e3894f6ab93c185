// Blocks shared by the ranks of x: legal programs, a sum behind every part, local costs.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "strait/config/parse.h"
#include "strait/draft/segment_ops.h"
#include "strait/plan/search.h"
#include "strait/shape/split.h"
#include "strait/strategy/grid/grid.h"
#include "strait/verify/verify.h"
#include "tests/pace.h"
#include "tests/sanitized.h"
#include "tests/strategy/passes.h"

namespace strait::strategy {
namespace {

using program::Group;
using program::Op;
using program::OpKind;
using program::Program;

Mesh mesh_of(int64_t x, int64_t data, int64_t y) {
  MeshOptions options;
  options.axes.x = x;
  options.axes.y = y;
  return Mesh(options, x * y * data);
}

/// Everything that a program is composed from.
struct Example {
  Example(int64_t x, int64_t data, const std::string& preset = "zero3", int64_t layers = 3,
          int64_t y = 1, bool splits_rows = false)
      : mesh(mesh_of(x, data, y)) {
    ShapeOptions shape_options;
    shape_options.layers = layers;
    shape_options.heads = shape_options.kv_heads = 8;
    shape_options.width = 16;
    shape_options.ffn_width = 64;
    shape_options.context = 4;
    ModelShape whole = gpt2_shape(shape_options, 16);
    whole.splits_rows = splits_rows;
    shape = local_shape(whole, x, y);
    cluster.ranks = mesh.ranks();
    cluster.levels = {{"pair", 2, 1e10, 1e-6, 1}, {"world", cluster.ranks / 2, 1e9, 5e-6, 1}};
    placement = resolve_placement(parse_run("", "test.toml", {"placement.preset=" + preset}),
                                  cluster, data);
    options.tokens = 4;
    options.accumulation = 4;
    options.optimizer = {{"m", "first_moment"}, {"v", "second_moment"}};
  }
  Program program() const { return compose({shape, placement, cluster, mesh}, options).front(); }

  Mesh mesh;
  ModelShape shape;
  Cluster cluster;
  Placement placement;
  StepOptions options;
};

std::vector<Op> ops_of(const Program& program) {
  std::vector<Op> ops;
  program::for_each_instance(program,
                             [&](const Op& op, const std::vector<int64_t>&) { ops.push_back(op); });
  return ops;
}

const Group& group_of(const Program& program, const Op& op) {
  return program.groups.at(static_cast<size_t>(op.group));
}

TEST(SharedBlocks, ProgramsAreLegal) {
  for (const int64_t x : {2, 4})
    for (const int64_t data : {1, 2, 4})
      for (const char* preset : {"ddp", "zero1", "zero2", "zero3"})
        for (const int64_t recompute : {0, 1, 2})
          for (const Purpose purpose : {Purpose::kTrain, Purpose::kEvaluate, Purpose::kPublish}) {
            Example example(x, data, preset);
            example.options.recompute = {recompute};
            example.options.purpose = purpose;
            const std::vector<program::Problem> problems = program::verify({example.program()});
            EXPECT_TRUE(problems.empty())
                << preset << " " << x << " x " << data << ": " << problems.front().message;
          }
}

TEST(SharedBlocks, ProgramsOfGridsAreLegal) {
  for (const auto& [x, y] : {std::pair{1, 2}, std::pair{2, 2}, std::pair{4, 2}, std::pair{1, 8}})
    for (const int64_t data : {1, 2})
      for (const char* preset : {"ddp", "zero1", "zero3"})
        for (const int64_t recompute : {0, 1})
          for (const Purpose purpose : {Purpose::kTrain, Purpose::kEvaluate}) {
            Example example(x, data, preset, 3, y);
            example.options.recompute = {recompute};
            example.options.purpose = purpose;
            const std::vector<program::Problem> problems = program::verify({example.program()});
            EXPECT_TRUE(problems.empty()) << preset << " " << x << " x " << y << " x " << data
                                          << ": " << problems.front().message;
          }
}

TEST(SharedBlocks, ProgramsWithSplitRowsAreLegal) {
  for (const auto& [x, y] : {std::pair{2, 1}, std::pair{4, 1}, std::pair{2, 2}, std::pair{4, 2}})
    for (const int64_t data : {1, 2})
      for (const char* preset : {"ddp", "zero3"})
        for (const int64_t recompute : {0, 1, 2})
          for (const Purpose purpose : {Purpose::kTrain, Purpose::kEvaluate}) {
            Example example(x, data, preset, 3, y, true);
            example.options.recompute = {recompute};
            example.options.purpose = purpose;
            const std::vector<program::Problem> problems = program::verify({example.program()});
            EXPECT_TRUE(problems.empty()) << preset << " " << x << " x " << y << " x " << data
                                          << ": " << problems.front().message;
          }
}

/// Transfers of rows, and what else is summed over x, of one micro-batch on two ranks.
TEST(SharedBlocks, SplitRowsAreScatteredAndGathered) {
  for (const bool recomputes : {false, true}) {
    Example example(2, 2, "zero3", 3, 1, true);
    example.options.accumulation = 1;
    example.options.recompute = {recomputes ? 1 : 0};
    const Program program = example.program();
    std::map<std::string, int> moved;
    for (const Op& op : ops_of(program)) {
      if (!program::is_communication(op.kind) || group_of(program, op).name != "x") continue;
      const auto& target = program.arrays.at(static_cast<size_t>(op.writes.front().array));
      ++moved[std::string(program::op_name(op)) + " " + target.name];
    }
    const int forwards = recomputes ? 6 : 3;
    EXPECT_EQ(moved,
              (std::map<std::string, int>{{"all_gather normed_attention", 6},
                                          {"all_gather normed_mlp", 6},
                                          {"all_gather down_sum_gradient", 3},
                                          {"all_gather output_sum_gradient", 3},
                                          {"all_gather head_normed", 1},
                                          {"all_gather embedding_gradient", 1},
                                          {"reduce_scatter output_sum.own", forwards},
                                          {"reduce_scatter down_sum.own", 3},
                                          {"reduce_scatter normed_mlp_gradient.own", 3},
                                          {"reduce_scatter normed_attention_gradient.own", 3},
                                          {"reduce_scatter embedding_sum.own", 1},
                                          {"reduce_scatter normed_gradient.own", 1},
                                          {"all_reduce attention_norm_gradient", 3},
                                          {"all_reduce mlp_norm_gradient", 3},
                                          {"all_reduce head_norm_weights", 1},
                                          {"all_reduce loss_parts", 1}}));
  }
}

TEST(SharedBlocks, EveryPartIsSummedAmongTheRanksThatShareIt) {
  Example example(2, 2);
  example.options.accumulation = 1;
  example.options.recompute = {1};
  const Program program = example.program();
  std::map<std::string, int> sums;
  const std::vector<Op> ops = ops_of(program);
  for (size_t i = 0; i < ops.size(); ++i) {
    if (!draft::works_on_segments(ops[i])) continue;
    for (const program::Operand& written : ops[i].writes) {
      if (!draft::is_partial_over_x(written.slot)) continue;
      const Op& sum = ops.at(i + 1);
      ASSERT_EQ(sum.kind, OpKind::kAllReduce);
      EXPECT_EQ(sum.reads.front().array, written.array);
      EXPECT_EQ(sum.writes.front().array, written.array);
      EXPECT_EQ(group_of(program, sum).members(3), (std::vector<int64_t>{2, 3}));
      EXPECT_EQ(program.streams.at(static_cast<size_t>(sum.stream)).resource, "pair");
      ++sums[program.arrays.at(static_cast<size_t>(written.array)).name];
    }
  }
  // Three blocks, whose attention is computed twice.
  EXPECT_EQ(sums, (std::map<std::string, int>{{"output_sum", 6},
                                              {"down_sum", 3},
                                              {"normed_mlp_gradient", 3},
                                              {"normed_attention_gradient", 3}}));
}

TEST(SharedBlocks, TheirSumsHaveALaneOfTheirOwn) {
  const Program program = Example(2, 4).program();
  std::set<int> sums, others;
  for (const Op& op : ops_of(program))
    if (program::is_communication(op.kind))
      (group_of(program, op).name == "x" ? sums : others).insert(op.stream);
  EXPECT_EQ(sums.size(), 1U);
  EXPECT_FALSE(others.contains(*sums.begin()));
}

TEST(SharedBlocks, OneRankAlongXChangesNothing) {
  for (const char* preset : {"ddp", "zero3"}) {
    const Example example(1, 4, preset);
    const auto composed = [&](const test::Passes& passes) {
      return test::compose_with({example.shape, example.placement, example.cluster, example.mesh},
                                example.options, "steady", passes);
    };
    EXPECT_EQ(composed([&](draft::Draft& draft) {
                grid(draft, example.shape, example.cluster, example.options);
              }),
              composed([](draft::Draft&) {}));
  }
}

bool is_end_step(const Op& op) {
  for (int step = 0; step < kNumEndSteps; ++step)
    if (op.kernel == &draft::end_kernel(static_cast<EndStep>(step))) return true;
  return false;
}

double block_flops(const Program& program) {
  double flops = 0;
  for (const Op& op : ops_of(program)) {
    const bool embeds = (op.kernel == &draft::kForward || op.kernel == &draft::kBackward) &&
                        program::operand_in(op.reads, draft::kInput) == nullptr;
    if (op.kernel != &draft::kForwardBackward && !embeds && !is_end_step(op))
      flops += program::cost_of(program, op, 0).flops;
  }
  return flops;
}

TEST(SharedBlocks, EachRankHasItsShareOfTheWork) {
  const double whole = block_flops(Example(1, 2).program());
  EXPECT_GT(whole, 0);
  for (const int64_t x : {2, 4})
    EXPECT_DOUBLE_EQ(block_flops(Example(x, 2).program()), whole / static_cast<double>(x));
}

TEST(SharedBlocks, ProgramsGrowNeitherWithLayersNorWithRanks) {
  const auto count = [](int64_t x, int64_t data, int64_t layers) {
    return program::count_ops(Example(x, data, "zero3", layers).program());
  };
  EXPECT_EQ(count(2, 2, 96), count(2, 2, 12));
  EXPECT_EQ(count(4, 1024, 12), count(2, 2, 12));
  const auto count_split = [](int64_t layers) {
    return program::count_ops(Example(2, 2, "zero3", layers, 1, true).program());
  };
  EXPECT_EQ(count_split(96), count_split(12));
}

/// Target: 50 ms of a processor. The limit leaves room for slow machines.
TEST(SharedBlocks, ManyRanksAreComposedInMilliseconds) {
  const Example example(8, 4096, "zero3", 96);
  const double began = test::thread_processor_seconds();
  const Program program = example.program();
  const double seconds = test::thread_processor_seconds() - began;
  EXPECT_EQ(program.ranks, 32'768);
  std::printf("composing 96 shared blocks on 32,768 ranks: %.1f ms\n", 1e3 * seconds);
  EXPECT_LT(seconds, 0.5 * test::kSlowdown);
}

// A node of two ranks is one data-parallel rank: what follows its level is not even tried.
TEST(SharedBlocks, PlansLeaveOutPlacementsWhoseLevelIsFilled) {
  const auto names = [](int64_t x) {
    strait::Run run =
        parse_run("", "run.toml",
                  {"cluster.levels=[{ name = \"node\", size = 2, gb_per_second = 1.0 }, { "
                   "name = \"world\", size = 0, gb_per_second = 1.0 }]",
                   "plan.search=placement", "train.global_batch_size=16",
                   "mesh.axes.x=" + std::to_string(x)});
    std::set<std::string> placements;
    for (const plan::Candidate& candidate : plan::search(run, 8, 64).candidates)
      placements.insert(candidate.design.placement.preset);
    return placements;
  };
  EXPECT_TRUE(names(1).contains("zero-topo"));
  EXPECT_FALSE(names(2).contains("zero-topo"));
  EXPECT_TRUE(names(2).contains("zero3"));
}

}  // namespace
}  // namespace strait::strategy
