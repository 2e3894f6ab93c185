// Training on 1 to 4 nodes of 1 to 8 ranks (specs/sharding.md 2.b, invariants 1, 2 and 6; 3.b, 2, 3
// and 8): any legal placement is one rank's training, hpZ is zero3 bit for bit and a stale copy is
// not, and all ranks compute on the same weights, near those of the optimizer.
#include <gtest/gtest.h>

#include <limits>
#include <mutex>

#include "strait/codec/codec.h"
#include "strait/cost/cost.h"
#include "strait/draft/block_kernels.h"
#include "strait/layout/layout.h"
#include "tests/train/instances.h"
#include "tests/train/trained.h"

namespace strait {
namespace {

using test::small_run;
using test::TemporaryFolder;
using test::train_small;
using test::Trained;

struct Grid {
  int64_t nodes, per_node;
  int64_t ranks() const { return nodes * per_node; }
  std::string text() const { return std::to_string(nodes) + " x " + std::to_string(per_node); }
};

/// Calls look(rank, instance) before each kernel of the steps of a run.
train::Outcome observed(const strait::Run& run, int64_t ranks, const std::string& run_dir,
                        const std::function<void(int64_t, const runtime::Instance&)>& look) {
  strait::Run with_folder = run;
  with_folder.output.run_dir = run_dir;
  const Job job = make_job(with_folder, ranks);
  train::Hooks hooks;
  hooks.before_op = [&](int64_t rank, const runtime::Instance& instance) {
    if (test::trains(instance)) look(rank, instance);
  };
  return test::outcome_of(job, hooks);
}

class OnGrids : public ::testing::Test {
 protected:
  /// One sequence per rank and micro-step, four steps.
  strait::Run run_of(const Grid& grid, std::vector<std::string> more, int64_t accumulation = 1) {
    std::string node;
    if (grid.per_node > 1)
      node = "{ name = \"node\", size = " + std::to_string(grid.per_node) +
             ", gb_per_second = 10.0, latency_microseconds = 1.0 }, ";
    const std::vector<std::string> first = {
        "cluster.levels=[" + node +
            "{ name = \"world\", size = 0, gb_per_second = 1.0, latency_microseconds = 5.0 }]",
        "train.steps=4",
        "model.shape.layers=2",
        "train.clip_norm=0.3",
        "optimizer.warmup_steps=1",
        "train.micro_batch_size=1",
        "train.global_batch_size=" + std::to_string(grid.ranks() * accumulation)};
    more.insert(more.begin(), first.begin(), first.end());
    return small_run(folder_.path(), more);
  }
  Trained train_on(const Grid& grid, std::vector<std::string> sets, int64_t accumulation = 1) {
    return test::trained(run_of(grid, std::move(sets), accumulation), grid.ranks(), next_folder());
  }
  /// The same batches on one rank.
  Trained serial(const Grid& grid, int64_t accumulation = 1) {
    strait::Run run = run_of({1, 1}, {"placement.preset=ddp"});
    run.train.global_batch_size = run.train.micro_batch_size = grid.ranks() * accumulation;
    return test::trained(run, 1, next_folder());
  }
  std::string next_folder() { return folder_.path() + "/" + std::to_string(number_++); }
  static std::string spans(const std::string& weights, const std::string& secondary,
                           const std::string& gradients, const std::string& optimizer) {
    return "placement.spans={ weights = \"" + weights + "\", secondary = \"" + secondary +
           "\", gradients = \"" + gradients + "\", optimizer = \"" + optimizer + "\" }";
  }
  static std::string spans(int64_t weights, int64_t gradients, int64_t optimizer) {
    return spans(std::to_string(weights), "none", std::to_string(gradients),
                 std::to_string(optimizer));
  }
  static void expect_equal(const Trained& got, const Trained& want, const std::string& what) {
    ASSERT_EQ(got.losses.size(), want.losses.size()) << what;
    for (size_t step = 0; step < want.losses.size(); ++step)
      ASSERT_NEAR(got.losses[step], want.losses[step], 1e-9 * want.losses[step])
          << what << " step " << step;
    EXPECT_LT(test::distance(got, want), 1e-9) << what;
  }
  TemporaryFolder folder_;
  int number_ = 0;
};

TEST_F(OnGrids, EveryLegalTripleOfSpansEqualsOneRank) {
  for (const Grid& grid : {Grid{2, 2}, Grid{3, 2}, Grid{2, 4}}) {
    const Trained want = serial(grid);
    for (int64_t weights = 1; weights <= grid.ranks(); ++weights) {
      for (int64_t gradients = weights; gradients <= grid.ranks(); gradients += weights) {
        for (int64_t optimizer = gradients; optimizer <= grid.ranks(); optimizer += gradients) {
          if (grid.ranks() % optimizer != 0) continue;
          const std::string text = spans(weights, gradients, optimizer);
          expect_equal(train_on(grid, {text}), want, text + " on " + grid.text());
        }
      }
    }
  }
}

TEST_F(OnGrids, LargeAndOddGridsEqualOneRank) {
  for (const Grid& grid : {Grid{3, 8}, Grid{4, 8}, Grid{3, 5}, Grid{1, 7}}) {
    const int64_t accumulation = grid.ranks() < 20 ? 2 : 1;
    const Trained want = serial(grid, accumulation);
    const bool levels = grid.nodes > 1 && grid.per_node > 1;
    std::vector<std::string> all = {spans("none", "none", "none", "world"),     // ZeRO-1
                                    spans("world", "none", "world", "world")};  // ZeRO-3
    if (levels) {
      all.push_back(spans("node", "none", "node", "world"));    // ZeRO-topo
      all.push_back(spans("world", "node", "world", "world"));  // hpZ
    }
    for (const std::string& text : all)
      expect_equal(train_on(grid, {text}, accumulation), want, text + " on " + grid.text());
  }
}

// Codecs by level make a reduction of several hops also where the first one is cut unevenly.
TEST_F(OnGrids, PresetsWithCodecsTrainOnEveryGrid) {
  for (const Grid& grid : {Grid{2, 3}, Grid{3, 8}}) {
    const Trained want = serial(grid, 2);
    for (const char* preset : {"zero++", "zero-topo"}) {
      const Trained got = train_on(grid, {std::string("placement.preset=") + preset}, 2);
      for (size_t step = 0; step < want.losses.size(); ++step)
        EXPECT_NEAR(got.losses[step], want.losses[step], 0.03) << preset << " on " << grid.text();
    }
  }
}

// Gradients without a codec go one way whatever the weights do.
TEST_F(OnGrids, SecondaryCopiesAloneAreZero3BitForBit) {
  for (const Grid& grid :
       {Grid{2, 2}, Grid{3, 2}, Grid{2, 3}, Grid{4, 2}, Grid{2, 5}, Grid{3, 8}}) {
    const std::vector<std::string> base = {"train.precision=fp32"};
    std::vector<std::string> copy = base;
    copy.push_back(spans("world", "node", "world", "world"));
    EXPECT_EQ(train_on(grid, copy, 2).hash, train_on(grid, base, 2).hash) << grid.text();
  }
}

bool writes_copy(const runtime::Instance& instance) {
  return instance.op->kernel == &strategy::kEncode &&
         instance.program->arrays[instance.writes[0].array].category ==
             program::Category::kSecondary;
}

// The defect of DeepSpeed's early hpZ, injected: in every step but the first, the copies are put
// back to those of the step before as soon as they are made.
TEST_F(OnGrids, StaleSecondaryCopiesAreNoticed) {
  const Grid grid{2, 2};
  const std::vector<std::string> hpz = {"train.precision=fp32",
                                        spans("world", "node", "world", "world")};
  struct Copy {
    void* data = nullptr;
    std::vector<char> before;  // of the step before
    bool made = false;         // in this step, and not yet put back
  };
  const auto hash_with = [&](bool stale) {
    std::vector<std::map<void*, Copy>> copies(static_cast<size_t>(grid.ranks()));
    const auto look = [&](int64_t rank, const runtime::Instance& instance) {
      for (auto& [data, copy] : copies[rank]) {
        if (!copy.made) continue;
        std::vector<char> now(copy.before.size());
        std::memcpy(now.data(), data, now.size());
        if (stale && instance.step > 0) std::memcpy(data, copy.before.data(), now.size());
        copy.before = now;
        copy.made = false;
      }
      if (!writes_copy(instance)) return;
      const runtime::Bound& target = instance.writes[0];
      Copy& copy = copies[rank][target.data];
      copy.before.resize(static_cast<size_t>(target.bytes));
      copy.made = true;
    };
    return observed(run_of(grid, hpz), grid.ranks(), next_folder(), look).parameter_hash;
  };
  const std::string want = train_on(grid, {"train.precision=fp32"}).hash;
  EXPECT_EQ(hash_with(false), want);
  EXPECT_NE(hash_with(true), want);
}

// An evaluation gathers over the nodes once, and in the fp32 of zero3.
TEST_F(OnGrids, EvaluationsUseSecondaryCopiesOfTheirOwn) {
  const Grid grid{2, 2};
  const std::vector<std::string> base = {"train.precision=fp32", "evaluation.every_steps=2",
                                         "train.non_finite=skip"};
  std::vector<std::string> copy = base;
  copy.push_back(spans("world", "node", "world", "world"));
  // Step 1 is skipped by all, and the evaluation after it still has the copies of that step.
  const auto spoil = [](int64_t rank, const runtime::Instance& instance) {
    if (instance.op->kernel == &strategy::kSquaredNormOf && rank == 1 && instance.step == 1)
      static_cast<float*>(instance.reads[0].data)[0] = std::numeric_limits<float>::infinity();
  };
  const train::Outcome want = observed(run_of(grid, base), 4, next_folder(), spoil),
                       got = observed(run_of(grid, copy), 4, next_folder(), spoil);
  ASSERT_EQ(got.validation.size(), 2u);
  EXPECT_EQ(got.validation[0].loss, want.validation[0].loss);
  EXPECT_EQ(got.validation[1].loss, want.validation[1].loss);
  EXPECT_EQ(got.parameter_hash, want.parameter_hash);
  std::vector<std::string> unwatched = copy;
  unwatched.push_back("evaluation.every_steps=0");
  EXPECT_EQ(got.traffic.payload_bytes(1),
            observed(run_of(grid, unwatched), 4, next_folder(), spoil).traffic.payload_bytes(1))
      << "evaluations change what training moves";
}

TEST_F(OnGrids, LaterBatchesOfAnEvaluationStayInsideTheNodes) {
  const Grid grid{3, 4};
  const strategy::Design design = strategy::make_design(
      run_of(grid, {spans("world", "node", "world", "world")}), grid.ranks(), 40);
  const auto gathered_over_nodes = [&](const program::Program& program) {
    int64_t bytes = 0;
    for (const Traffic& row : cost::price(program, design.cluster).traffic.rows())
      if (row.operation == "all-gather" && row.level == 1) bytes += row.payload_bytes;
    return bytes;
  };
  EXPECT_GT(gathered_over_nodes(design.programs.program(strategy::kEvaluation, 0)), 0);
  EXPECT_EQ(gathered_over_nodes(design.programs.program(strategy::kEvaluationUnchanged, 0)), 0);
}

// A loaded checkpoint has other weights than the copies of this process, if it has any: they are
// made anew.
TEST_F(OnGrids, SecondaryCopiesAreMadeAnewAfterLoading) {
  const auto with = [&](const char* steps, const char* resume) {
    return run_of({2, 2}, {"train.precision=fp32", spans("world", "node", "world", "world"),
                           "optimizer.decay_steps=6", std::string("train.steps=") + steps,
                           std::string("checkpoint.resume=") + resume});
  };
  const std::string whole = next_folder(), parts = next_folder();
  const std::string want = train_small(with("6", "never"), 4, whole).parameter_hash;
  train_small(with("3", "never"), 4, parts);
  EXPECT_EQ(train_small(with("6", "auto"), 4, parts).parameter_hash, want);
}

/// The weights that every forward of a run computes on: [step, block] -> bytes, the same on all
/// ranks.
using Weights = std::map<std::pair<int64_t, int64_t>, std::vector<char>>;

Weights forward_weights(const strait::Run& run, int64_t ranks, const std::string& run_dir,
                        int64_t& differences) {
  Weights weights;
  std::mutex mutex;
  differences = 0;
  observed(run, ranks, run_dir, [&](int64_t, const runtime::Instance& instance) {
    if (instance.op->kernel != &draft::kForward) return;
    const runtime::Bound& operand = *instance.find_read(draft::kWeights);
    const std::vector<char> bytes(static_cast<char*>(operand.data),
                                  static_cast<char*>(operand.data) + operand.bytes);
    const std::lock_guard lock(mutex);
    const auto [seen, fresh] =
        weights.try_emplace({instance.step, instance.index(draft::kBlock)}, bytes);
    differences += seen->second != bytes;
  });
  return weights;
}

TEST_F(OnGrids, AllRanksComputeOnTheSameWeightsWithinTheCodecsBound) {
  for (const Grid& grid : {Grid{2, 2}, Grid{2, 3}, Grid{3, 4}, Grid{2, 8}}) {
    int64_t differences = 0;
    const std::vector<std::string> exact = {"train.precision=fp32", "train.steps=1"};
    const Weights want =
        forward_weights(run_of(grid, exact), grid.ranks(), next_folder(), differences);
    EXPECT_EQ(differences, 0);
    for (const char* preset : {"zero++", "zero-topo"}) {
      const Weights got = forward_weights(run_of(grid,
                                                 {"train.precision=fp32", "train.steps=3",
                                                  std::string("placement.preset=") + preset},
                                                 2),
                                          grid.ranks(), next_folder(), differences);
      EXPECT_EQ(differences, 0) << preset << " on " << grid.text();
      EXPECT_EQ(got.size(), 3 * want.size());
      // Before the first step the optimizer's weights are the initial ones. Pieces are shards of
      // all ranks.
      const codec::CodecSpec spec = codec::parse_codec("int8/2048");
      int64_t rounded = 0;
      for (const auto& [at, bytes] : want) {
        const float* x = reinterpret_cast<const float*>(bytes.data());
        const float* y = reinterpret_cast<const float*>(got.at(at).data());
        const int64_t count = static_cast<int64_t>(bytes.size()) / 4;
        const program::Partition pieces = split_unit(count, grid.ranks(), grid.ranks());
        for (int64_t part = 0; part < grid.ranks(); ++part) {
          for (int64_t i = pieces.begin(part); i < pieces.end(part); i += spec.block) {
            const int64_t end = std::min(i + spec.block, pieces.end(part));
            const auto [low, high] = std::minmax_element(x + i, x + end);
            const double bound = codec::error_bound(spec, *low, *high);
            for (int64_t k = i; k < end; ++k) {
              ASSERT_LE(std::abs(x[k] - y[k]), bound) << preset << " on " << grid.text();
              rounded += x[k] != y[k];
            }
          }
        }
      }
      EXPECT_GT(rounded, 100);
    }
  }
}

}  // namespace
}  // namespace strait
