// Ranks that share blocks, in stages, with placements along data: all three at once equal one rank,
// and checkpoints go between them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/train/trained.h"

namespace strait {
namespace {

using test::small_run;
using test::Trained;
using ::testing::HasSubstr;

struct Case {
  int64_t x, data, stages;
  std::string placement;
  std::string family = "gpt2";
  int64_t ranks() const { return x * data * stages; }
};

class PipelineGrids : public test::MeshRuns {
 protected:
  strait::Run run_of(const Case& c, std::vector<std::string> more = {}) {
    const std::vector<std::string> first = {
        "mesh.axes.x=" + std::to_string(c.x),
        "mesh.axes.stage=" + std::to_string(c.stages),
        "placement.preset=" + c.placement,
        "train.global_batch_size=8",
        "train.micro_batch_size=" + std::to_string(c.ranks() == 1 ? 8 : 8 / c.data / 2),
        "train.clip_norm=0.3",
        "model.shape.layers=4",
        "model.shape.vocabulary=24",
        "model.shape.heads=4",
        "model.shape.width=24",
        "model.shape.ffn_width=40",
        "model.shape.dropout=0.1",
        "model.shape.tied_head=" + std::string(c.family == "gpt2" ? "true" : "false"),
        "model.family=" + c.family,
        "model.shape.kv_heads=" + std::string(c.family == "gpt2" ? "4" : "2")};
    more.insert(more.begin(), first.begin(), first.end());
    return small_run(folder_.path(), more);
  }
  Trained train(const Case& c) { return test::trained(run_of(c), c.ranks(), next_folder()); }
};

TEST_F(PipelineGrids, EqualOneRank) {
  for (const char* family : {"gpt2", "llama"}) {
    const Trained want = train({1, 1, 1, "ddp", family});
    for (const char* placement : {"ddp", "zero1", "zero2", "zero3"}) {
      SCOPED_TRACE(family + std::string(" ") + placement);
      expect_equal(train({2, 2, 2, placement, family}), want);
    }
    SCOPED_TRACE(family + std::string(", 4 stages"));
    expect_equal(train({2, 1, 4, "ddp", family}), want);
  }
}

TEST_F(PipelineGrids, CheckpointsGoFromAnyToAny) {
  const std::vector<Case> parts = {{2, 2, 2, "zero1"},
                                   {1, 4, 2, "zero3"},
                                   {2, 2, 1, "zero3"},
                                   {1, 1, 1, "ddp"},
                                   {2, 1, 4, "ddp"}};
  const std::string run_dir = next_folder();
  Trained got;
  for (size_t part = 0; part < parts.size(); ++part) {
    const std::string until = std::to_string(4 * (part + 1));
    got = test::trained(run_of(parts[part], {"train.steps=" + until, "checkpoint.resume=auto",
                                             "optimizer.decay_steps=20"}),
                        parts[part].ranks(), run_dir);
  }
  expect_equal(got, train({1, 1, 1, "ddp"}));
}

/// Replicas that agree rarely, of every mesh.
TEST_F(PipelineGrids, AReplicaMayHoldAnyMesh) {
  const std::vector<std::vector<std::string>> policies = {
      {"sync.policy=diloco", "sync.rounds.period_steps=5"},
      {"sync.policy=streaming-diloco", "sync.rounds.period_steps=6", "sync.rounds.fragments=3",
       "sync.outer.codec=none"},
      {"sync.policy=co2", "sync.rounds.period_steps=3"}};
  for (const std::vector<std::string>& policy : policies) {
    // Of two replicas, each one data rank or two.
    const auto train_replicas = [&](const Case& one, const char* replica) {
      std::vector<std::string> sets = policy;
      sets.push_back(std::string("sync.replica=") + replica);
      const Case two{one.x, 2 * one.data, one.stages, one.placement};
      return test::trained(run_of(two, sets), two.ranks(), next_folder());
    };
    const Trained want = train_replicas({1, 1, 1, "ddp"}, "none");
    for (const Case& one : {Case{2, 1, 1, "ddp"}, Case{1, 1, 2, "ddp"}, Case{2, 1, 2, "zero3"}}) {
      SCOPED_TRACE(policy.front() + ", x " + std::to_string(one.x) + ", stages " +
                   std::to_string(one.stages));
      expect_equal(train_replicas(one, "none"), want);
    }
    SCOPED_TRACE(policy.front() + ", two data ranks in two stages");
    expect_equal(train_replicas({1, 2, 2, "zero1"}, "2"), want);
    // The ranks of z share the weights of a replica.
    for (const char* placement : {"hsdp", "mics"}) {
      SCOPED_TRACE(policy.front() + ", z, " + placement);
      std::vector<std::string> sets = policy;
      sets.push_back("mesh.axes.z=2");
      expect_equal(test::trained(run_of({1, 2, 1, placement}, sets), 4, next_folder()), want);
    }
  }
}

TEST_F(PipelineGrids, AReplicaIsNotParted) {
  const auto refusal = [&](const char* replica) -> std::string {
    try {
      test::trained(run_of({1, 2, 1, "hsdp"}, {"sync.policy=diloco", "mesh.axes.z=2",
                                               std::string("sync.replica=") + replica}),
                    4, next_folder());
    } catch (const UserError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refusal("1"), HasSubstr("would part the 2 ranks of mesh.axes.z"));
  EXPECT_THAT(refusal("1"), HasSubstr("the nearest valid value is 2"));
  EXPECT_THAT(refusal("3"),
              HasSubstr("does not divide the 4 data ranks; the nearest valid value is 2"));
  EXPECT_EQ(refusal("2"), "accepted");
}

}  // namespace
}  // namespace strait
