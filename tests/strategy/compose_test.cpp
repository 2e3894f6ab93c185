// Builders: legal programs for every placement, sizes that do not grow, one table, and what it
// says.
#include "strait/strategy/compose/compose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "strait/base/errors.h"
#include "strait/config/parse.h"
#include "strait/draft/block_kernels.h"
#include "strait/layout/layout.h"
#include "strait/program/memory.h"
#include "strait/program/roll.h"
#include "strait/strategy/finish/kernels.h"
#include "strait/strategy/sharding/kernels.h"
#include "strait/verify/verify.h"

namespace strait::strategy {
namespace {

Cluster two_levels(int64_t ranks) {
  Cluster cluster;
  cluster.name = "test";
  cluster.levels = {{"pair", 2, 1e10, 1e-6, 1}, {"world", ranks / 2, 1e9, 5e-6, 1}};
  cluster.ranks = ranks;
  return cluster;
}

Placement placement_of(const std::string& preset, const Cluster& cluster, int64_t ranks,
                       const std::vector<std::string>& sets = {}) {
  std::vector<std::string> all = {"placement.preset=" + preset};
  all.insert(all.end(), sets.begin(), sets.end());
  return resolve_placement(parse_run("", "test.toml", all), cluster, ranks);
}

ModelShape model_of(int64_t layers) {
  ShapeOptions options;
  options.layers = layers;
  options.heads = options.kv_heads = 2;
  options.width = 8;
  options.ffn_width = 32;
  options.context = 4;
  return gpt2_shape(options, 11);
}

StepOptions options_of(int64_t accumulation, int64_t every);

StepOptions with(Purpose purpose, int64_t every = 0) {
  StepOptions options = options_of(1, every);
  options.purpose = purpose;
  return options;
}

StepOptions options_of(int64_t accumulation, int64_t every) {
  StepOptions options;
  options.tokens = 4;
  options.accumulation = accumulation;
  options.recompute = {every};
  options.optimizer = {{"m", "first_moment"}, {"v", "second_moment"}};
  return options;
}

TEST(PlacementTable, PresetsAreRowsOfSpans) {
  const Cluster cluster = two_levels(8);
  const auto spans = [&](const char* preset) {
    const Placement p = placement_of(preset, cluster, 8);
    return std::vector<int64_t>{p.weights, p.gradients, p.optimizer, p.across_every_micro_step};
  };
  EXPECT_EQ(spans("ddp"), (std::vector<int64_t>{1, 1, 1, 0}));
  EXPECT_EQ(spans("zero1"), (std::vector<int64_t>{1, 1, 8, 0}));
  EXPECT_EQ(spans("zero2"), (std::vector<int64_t>{1, 8, 8, 0}));
  EXPECT_EQ(spans("zero3"), (std::vector<int64_t>{8, 8, 8, 0}));
  EXPECT_EQ(spans("hsdp"), (std::vector<int64_t>{2, 2, 2, 1}));
  EXPECT_EQ(spans("mics"), (std::vector<int64_t>{2, 2, 2, 0}));
  EXPECT_EQ(spans("zero++"), (std::vector<int64_t>{8, 8, 8, 0}));
  EXPECT_EQ(spans("zero-topo"), (std::vector<int64_t>{2, 2, 8, 0}));
  EXPECT_EQ(placement_of("zero++", cluster, 8).secondary, 2);
  EXPECT_EQ(placement_of("zero++", cluster, 8).hops, (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(placement_of("zero-topo", cluster, 8).hops, (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(placement_of("zero3", cluster, 8).hops, (std::vector<int64_t>{8}));
}

TEST(PlacementTable, WrittenSpansOverrideAndImpossibleOnesAreRefused) {
  const Cluster cluster = two_levels(8);
  EXPECT_EQ(placement_of("hsdp", cluster, 8,
                         {"placement.spans.weights=4", "placement.spans.gradients=4",
                          "placement.spans.optimizer=4"})
                .optimizer,
            4);
  EXPECT_EQ(placement_of("zero3", cluster, 8, {"placement.spans.weights=none"}).weights, 1);
  EXPECT_THROW(placement_of("zero3", cluster, 8, {"placement.spans.weights=3"}), UserError);
  EXPECT_THROW(placement_of("zero3", cluster, 8, {"placement.spans.gradients=2"}), UserError);
  EXPECT_THROW(placement_of("zero3", cluster, 8, {"placement.spans.weights=pear"}), UserError);
  EXPECT_THROW(placement_of("zero3", cluster, 8, {"placement.reduce_every=step"}), UserError);
  // Four ranks share no node with others: the span that is written is at fault, not the preset.
  Cluster apart = two_levels(4);
  apart.levels = {{"world", 4, 1e9, 0, 1}};
  try {
    placement_of("zero2", apart, 4, {"placement.spans.optimizer=node"});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.place().key, "placement.spans.optimizer");
    EXPECT_STREQ(error.what(),
                 "placement.spans.optimizer = \"node\" is no level of the 4 data ranks on cluster "
                 "test; valid: 1, 2, 4");
  }
}

TEST(Layout, ShardsTileEveryUnitAndNest) {
  for (const int64_t elements : {1, 15, 16, 17, 1000, 12345}) {
    for (const int64_t world : {1, 2, 3, 4, 8, 12}) {
      for (int64_t span = 1; span <= world; ++span) {
        if (world % span != 0) continue;
        int64_t next = 0;
        for (int64_t rank = 0; rank < span; ++rank) {
          const Range range = shard_of(elements, span, world, rank);
          EXPECT_EQ(range.begin, next);
          EXPECT_EQ(range.begin % kShardAlignment == 0 || range.begin == elements, true);
          next = range.end;
        }
        EXPECT_EQ(next, elements);
        // The finest parts of a coarse part's neighbours lie inside it.
        for (int64_t rank = 0; rank < span; ++rank) {
          const Range coarse = shard_of(elements, span, world, rank);
          for (int64_t k = 0; k < world / span; ++k) {
            const Range fine = shard_of(elements, world, world, rank * (world / span) + k);
            EXPECT_LE(coarse.begin, fine.begin);
            EXPECT_LE(fine.end, coarse.end);
          }
        }
      }
    }
  }
}

TEST(Layout, TheRangesThatRanksCountTileEveryUnitUnderEveryPlacement) {
  const ModelShape shape = model_of(3);
  for (const int64_t ranks : {2, 4, 8}) {
    for (const PlacementRow& row : placement_table()) {
      const Cluster cluster = two_levels(ranks);
      if (!is_applicable(row, cluster, ranks)) continue;
      const program::Program program =
          compose(shape, placement_of(row.name, cluster, ranks), cluster, options_of(1, 0));
      const Layout layout(shape, Mesh({}, ranks));
      program::for_each_instance(program, [&](const program::Op& op, const program::Loops& loops) {
        if (op.kernel != &kSquaredNormOf) return;
        const int64_t unit =
            program::evaluate(program::attribute<program::Index>(op, kUnit), loops);
        std::vector<Range> ranges;
        for (int64_t rank = 0; rank < ranks; ++rank) {
          const Range held = updated_range(program, op, rank);
          for (const Range& range : layout.counted(unit, rank, hops_of(program.groups[op.group]))) {
            EXPECT_TRUE(held.begin <= range.begin && range.end <= held.end);
            ranges.push_back(range);
          }
        }
        std::sort(ranges.begin(), ranges.end(),
                  [](const Range& a, const Range& b) { return a.begin < b.begin; });
        int64_t next = 0;
        for (const Range& range : ranges) {
          EXPECT_EQ(range.begin, next) << row.name;
          next = range.end;
        }
        EXPECT_EQ(next, op.partition.elements) << row.name;
      });
    }
  }
}

TEST(Compose, EveryProgramIsLegal) {
  for (const PlacementRow& row : placement_table()) {
    for (const int64_t ranks : {1, 2, 8}) {
      for (const int64_t accumulation : {1, 2, 5}) {
        for (const int64_t every : {0, 1, 2}) {
          for (const int64_t prefetch : {0, 1, 3}) {
            Cluster cluster = ranks == 1 ? Cluster{} : two_levels(ranks);
            if (ranks == 1) cluster.levels = {{"world", 1, 1e9, 0, 1}};
            if (!is_applicable(row, cluster, ranks)) continue;
            Placement placement = placement_of(row.name, cluster, ranks);
            placement.prefetch_units = prefetch;
            for (const program::Program& program :
                 {compose(model_of(5), placement, cluster, options_of(accumulation, every)),
                  compose(model_of(5), placement, cluster, with(Purpose::kPublish)),
                  compose(model_of(5), placement, cluster, with(Purpose::kEvaluate, every))}) {
              const std::vector<program::Problem> problems = program::verify({program});
              EXPECT_TRUE(problems.empty())
                  << row.name << " on " << ranks << ": " << problems.front().message;
            }
          }
        }
      }
    }
  }
}

TEST(Compose, TheSizeOfAProgramGrowsWithNeitherLayersNorMicroBatchesNorRanks) {
  for (const PlacementRow& row : placement_table()) {
    const auto ops = [&](int64_t layers, int64_t accumulation, int64_t ranks) {
      const Cluster cluster = two_levels(ranks);
      return program::count_ops(compose(model_of(layers), placement_of(row.name, cluster, ranks),
                                        cluster, options_of(accumulation, 0)));
    };
    const int64_t small = ops(12, 4, 4);
    EXPECT_EQ(ops(96, 4, 4), small) << row.name;
    EXPECT_EQ(ops(12, 64, 4), small) << row.name;
    EXPECT_EQ(ops(12, 4, 1024), small) << row.name;
  }
}

/// Blocks of two kinds of attention roll into one loop all the same.
TEST(Compose, AlternatingWindowsAddNothingToAProgram) {
  const auto ops = [&](int64_t layers, int64_t pattern) {
    ShapeOptions options{layers, 4, 2, 16, 24, 32, false, 0.0, true};
    options.window = 8;
    options.window_pattern = pattern;
    const Cluster cluster = two_levels(4);
    return program::count_ops(compose(model_shape({"", "gemma3", options}, 40),
                                      placement_of("zero3", cluster, 4), cluster,
                                      options_of(4, 0)));
  };
  const int64_t alike = ops(12, 0);
  EXPECT_EQ(ops(12, 6), alike);
  EXPECT_EQ(ops(13, 6), alike);
  EXPECT_EQ(ops(96, 6), alike);
}

TEST(Compose, ADroppedGatherIsRefused) {
  const Cluster cluster = two_levels(4);
  const program::Program whole = program::Program(
      compose(model_of(2), placement_of("zero3", cluster, 4), cluster, options_of(1, 0)));
  ASSERT_TRUE(program::verify({whole}).empty());
  int refused = 0, tried = 0;
  for (size_t i = 0; i < whole.body.size(); ++i) {
    const auto* op = std::get_if<program::Op>(&whole.body[i]);
    if (op == nullptr || op->kind != program::OpKind::kAllGather) continue;
    program::Program broken = whole;
    broken.body.erase(broken.body.begin() + static_cast<int64_t>(i));
    ++tried;
    refused += program::verify({broken}).empty() ? 0 : 1;
  }
  EXPECT_GT(tried, 4);
  EXPECT_EQ(refused, tried);
}

TEST(Compose, TransfersRunAcrossTheBordersOfMicroSteps) {
  const Cluster cluster = two_levels(4);
  const program::Program program = program::unroll(
      compose(model_of(6), placement_of("zero++", cluster, 4), cluster, options_of(3, 0)));
  std::vector<program::Op> ops;
  for (const program::Node& node : program.body) ops.push_back(std::get<program::Op>(node));
  const auto find = [&](auto from, const auto& matches) {
    return std::find_if(from, ops.cend(), matches);
  };
  const auto calls = [](const program::Kernel& kernel) {
    return [&kernel](const program::Op& op) { return op.kernel == &kernel; };
  };
  /// A transfer to a value of a class of units ("block" or a unit's own name).
  const auto transfer = [&](program::OpKind kind, const char* resource, const char* units) {
    return [&, kind, resource, units](const program::Op& op) {
      if (op.kind != kind || program.streams[op.stream].resource != resource) return false;
      const std::string& name = program.arrays[op.writes[0].array].name;
      return name.ends_with(std::string(".") + units) && op.writes[0].index.constant == 0;
    };
  };
  const std::string embedding = model_of(6).units[0].name;
  auto load = ops.cbegin();
  for (const bool last : {false, false, true}) {
    const auto loss = find(load, calls(draft::kForwardBackward));
    ASSERT_NE(loss, ops.cend());
    load = find(loss, calls(draft::kLoad));
    EXPECT_EQ(load == ops.cend(), last);
    // The next micro-step's first gather, and the end of the first block's reduction in this one.
    const auto gathered =
        find(loss, transfer(program::OpKind::kAllGather, "pair", embedding.c_str()));
    EXPECT_EQ(gathered < load, !last);
    const auto sent = find(loss, transfer(program::OpKind::kAllToAll, "world", "block"));
    ASSERT_NE(sent, ops.cend());
    const auto decoded = find(sent, [&](const program::Op& op) {
      return op.kernel == &kDecodeSum && op.reads[0].array == sent->writes[0].array &&
             op.reads[0].index == sent->writes[0].index;
    });
    ASSERT_NE(decoded, ops.cend());
    const int64_t meanwhile = std::count_if(sent, decoded, [](const program::Op& op) {
      return op.kernel == &draft::kForward &&
             program::attribute<program::Index>(op, draft::kBlock).constant > 0;
    });
    // The outer hop's result may come some blocks later.
    EXPECT_EQ(meanwhile, last ? 0 : 4);
  }
}

Cluster levels_of_two(int64_t levels) {
  Cluster cluster;
  cluster.name = "test";
  cluster.ranks = int64_t{1} << levels;
  for (int64_t level = 0; level < levels; ++level)
    cluster.levels.push_back({"level" + std::to_string(level), 2, 1e10, 1e-6, 1});
  return cluster;
}

/// No gradient is written between the first encode of one, which begins its reduction, and its
/// free.
void expect_whole_reductions(const program::Program& program, const testing::Message& where) {
  std::set<std::pair<int, int64_t>> encoded;
  program::for_each_instance(
      program, [&](const program::Op& op, const std::vector<int64_t>& loops) {
        const auto value = [&](const program::Operand& operand) {
          return std::pair{operand.array, program::evaluate(operand.index, loops)};
        };
        const bool makes_gradient =
            op.kernel == &draft::kBackward || op.kernel == &draft::kForwardBackward;
        if (op.kernel == &kEncode)
          for (const program::Operand& read : op.reads) encoded.insert(value(read));
        for (const program::Operand& written : op.writes) {
          if (op.kind == program::OpKind::kFree) encoded.erase(value(written));
          EXPECT_FALSE(makes_gradient && written.slot == draft::kGradient &&
                       encoded.contains(value(written)))
              << program::print_op(program, op, &loops) << ": " << where;
        }
      });
}

TEST(Compose, AGradientIsNotWrittenWhileTheReductionOfTheLastOneNeedsIt) {
  for (const int64_t levels : {2, 3, 4, 5})
    for (const int64_t layers : {1, 2, 3})
      for (const bool tied : {false, true})
        for (const int64_t accumulation : {2, 3, 4, 6}) {
          const Cluster cluster = levels_of_two(levels);
          ShapeOptions options = model_of(layers).options;
          options.tied_head = tied;
          const program::Program program =
              compose(gpt2_shape(options, 11), placement_of("zero++", cluster, cluster.ranks),
                      cluster, options_of(accumulation, 0));
          const auto where = testing::Message()
                             << levels << " levels, " << layers << " layers, " << accumulation
                             << " micro-steps" << (tied ? ", tied" : "");
          EXPECT_TRUE(program::verify({program}).empty()) << where;
          expect_whole_reductions(program, where);
        }
}

TEST(Compose, PrefetchBoundsGatheredUnitsToOneMoreThanItsDepth) {
  const Cluster cluster = two_levels(4);
  const auto buffers = [&](int64_t prefetch) {
    const Placement placement =
        placement_of("zero3", cluster, 4, {"placement.prefetch_units=" + std::to_string(prefetch)});
    return program::peak_memory(compose(model_of(8), placement, cluster, options_of(1, 0)), 0)
        .total();
  };
  EXPECT_LT(buffers(0), buffers(1));
  EXPECT_LT(buffers(1), buffers(4));
}

}  // namespace
}  // namespace strait::strategy
