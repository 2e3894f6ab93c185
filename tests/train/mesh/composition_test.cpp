// All axes, orders, cuts and placements together equal one rank, and checkpoints go between them.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/train/exchanged_bytes.h"
#include "tests/train/trained.h"

namespace strait {
namespace {

using test::small_run;
using test::Trained;
using Sets = std::vector<std::string>;

/// What a run computes, which decides its result, and how.
struct Case {
  int64_t x, data, stages, micro_batches;
  std::string placement;
  std::string order = "1f1b";
  int64_t chunks = 1;
  Sets how = {};   // does not change the result
  Sets what = {};  // changes it
  int64_t ranks() const { return x * data * stages; }
  std::string text() const {
    std::string text = "x " + std::to_string(x) + ", data " + std::to_string(data) + ", stages " +
                       std::to_string(stages) + ", " + std::to_string(micro_batches) +
                       " micro-batches, " + placement + ", " + order + " " + std::to_string(chunks);
    for (const auto* sets : {&how, &what})
      for (const std::string& set : *sets) text += ", " + set;
    return text;
  }
};

const Sets kGpt = {"model.family=gpt2"};
const Sets kUntied = {"model.family=gpt2", "model.shape.tied_head=false"};
const Sets kLlama = {"model.family=llama", "model.shape.kv_heads=2", "model.shape.tied_head=false"};
const Sets kFree = {"train.clip_norm=0"};
const Sets kRecompute = {"train.recompute=block"};
const Sets kLevels = {
    "cluster.levels=[{ name = \"node\", size = 2, gb_per_second = 10.0, latency_microseconds = 1.0 "
    "}, { name = \"world\", size = 0, gb_per_second = 1.0, latency_microseconds = 5.0 }]"};

const Sets kExact = {
    "placement.codecs={ weights = \"none\", secondary = \"none\", gradients = [\"none\"], update = "
    "\"none\" }"};

Sets operator+(Sets a, const Sets& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class Compositions : public test::MeshRuns {
 protected:
  strait::Run run_of(const Case& c, const Sets& more = {}) {
    const bool alone = c.ranks() == 1;
    Sets sets = {
        "mesh.axes.x=" + std::to_string(c.x),
        "mesh.axes.stage=" + std::to_string(c.stages),
        "placement.preset=" + c.placement,
        "train.steps=6",
        "train.global_batch_size=8",
        "train.micro_batch_size=" + std::to_string(alone ? 8 : 8 / c.data / c.micro_batches),
        "train.clip_norm=0.3",
        "optimizer.decay_steps=20",
        "model.shape.layers=4",
        "model.shape.heads=4",
        "model.shape.vocabulary=24",
        "model.shape.kv_heads=4",
        "model.shape.width=24",
        "model.shape.ffn_width=40",
        "model.shape.dropout=0.1"};
    if (c.stages > 1)
      sets = sets + Sets{"pipeline.order=" + c.order,
                         "pipeline.chunks_per_stage=" + std::to_string(c.chunks)};
    return small_run(folder_.path(), sets + c.what + c.how + more);
  }
  Trained train(const Case& c, const Sets& more = {}) {
    return test::trained(run_of(c, more), c.ranks(), next_folder());
  }
  const Trained& serial(const Sets& what) {
    const auto [found, fresh] = serial_.try_emplace(what);
    if (fresh) {
      Case one{1, 1, 1, 1, "ddp"};
      one.what = what;
      found->second = train(one);
    }
    return found->second;
  }
  void expect_equal_one_rank(const std::vector<Case>& cases) {
    for (const Case& c : cases) {
      SCOPED_TRACE(c.text());
      expect_equal(train(c), serial(c.what));
    }
  }

 private:
  std::map<Sets, Trained> serial_;
};

TEST_F(Compositions, OrdersEqualOneRank) {
  std::vector<Case> cases;
  for (const Sets& what : {kGpt, kLlama}) {
    for (const char* order : {"gpipe", "1f1b", "zero-bubble-h1"}) {
      cases.push_back({1, 1, 2, 4, "ddp", order, 1, {}, what});
      cases.push_back({1, 2, 2, 4, "zero1", order, 1, {}, what});
      cases.push_back({1, 1, 4, 8, "ddp", order, 1, {}, what});
      cases.push_back({2, 1, 2, 2, "ddp", order, 1, {}, what});
      cases.push_back({2, 2, 2, 4, "zero1", order, 1, {}, what});
    }
    cases.push_back({1, 1, 2, 4, "ddp", "interleaved", 2, {}, what});
    cases.push_back({1, 2, 2, 2, "zero1", "interleaved", 2, {}, what});
    cases.push_back({2, 1, 2, 8, "ddp", "interleaved", 2, {}, what});
    cases.push_back({2, 2, 2, 4, "zero1", "interleaved", 2, {}, what});
    cases.push_back({1, 1, 2, 8, "ddp", "zero-bubble-h2", 1, {}, what + kFree});
    cases.push_back({1, 2, 2, 4, "zero1", "zero-bubble-h2", 1, {}, what + kFree});
    cases.push_back({2, 1, 4, 8, "ddp", "zero-bubble-h2", 1, {}, what + kFree});
  }
  expect_equal_one_rank(cases);
}

TEST_F(Compositions, PlacementsEqualOneRankInEveryOrder) {
  std::vector<Case> cases;
  for (const char* placement : {"zero2", "zero3"})
    for (const char* order : {"gpipe", "1f1b", "zero-bubble-h1", "interleaved"})
      cases.push_back(
          {1, 2, 2, 4, placement, order, order == std::string("interleaved") ? 2 : 1, {}, kUntied});
  for (const char* placement : {"hsdp", "mics", "zero-topo"})
    for (const char* order : {"1f1b", "zero-bubble-h1"})
      cases.push_back({1, 4, 2, 2, placement, order, 1, kLevels + kExact, kGpt});
  cases.push_back({1, 4, 2, 2, "zero-topo", "interleaved", 2, kLevels + kExact, kGpt});
  cases.push_back({2, 2, 2, 4, "zero3", "zero-bubble-h1", 1, {}, kLlama});
  cases.push_back({2, 2, 2, 4, "zero3", "interleaved", 2, kRecompute, kLlama});
  expect_equal_one_rank(cases);
}

TEST_F(Compositions, CutsRecomputationAndUpdatesInTheBackwardPassEqualOneRank) {
  std::vector<Case> cases;
  for (const char* order : {"gpipe", "1f1b", "zero-bubble-h1"}) {
    cases.push_back({1, 1, 2, 4, "ddp", order, 1, {"pipeline.cuts=1"}, kGpt});
    cases.push_back({1, 2, 3, 4, "zero1", order, 1, {"pipeline.cuts=2,3"}, kUntied});
    cases.push_back({1, 1, 2, 4, "ddp", order, 1, kRecompute, kGpt});
    cases.push_back({2, 1, 2, 2, "zero1", order, 1, {"train.recompute=every:2"}, kLlama});
    cases.push_back({1, 1, 3, 8, "ddp", order, 1, {"optimizer.in_backward=true"}, kGpt + kFree});
  }
  cases.push_back({1, 1, 2, 4, "ddp", "interleaved", 2, Sets{"pipeline.cuts=1,2,3"}, kGpt});
  cases.push_back({1, 2, 2, 4, "zero1", "interleaved", 2, kRecompute, kUntied});
  for (const char* family : {"qwen3", "olmo2", "gemma3"})
    cases.push_back({1,
                     1,
                     2,
                     4,
                     "ddp",
                     "zero-bubble-h1",
                     1,
                     {},
                     {std::string("model.family=") + family, "model.shape.tied_head=false",
                      "model.shape.bias=false", "model.shape.dropout=0"}});
  expect_equal_one_rank(cases);
}

/// Replicas that agree rarely: one rank for each, against pipelines for each.
TEST_F(Compositions, PoliciesOfLocalStepsTakeEveryOrder) {
  const std::vector<Sets> policies = {{"sync.policy=diloco", "sync.rounds.period_steps=3"},
                                      {"sync.policy=streaming-diloco", "sync.rounds.period_steps=4",
                                       "sync.rounds.fragments=2", "sync.outer.codec=none"},
                                      {"sync.policy=post-local-sgd", "sync.rounds.period_steps=2"}};
  for (const Sets& policy : policies) {
    const Trained want = train({1, 2, 1, 1, "ddp", "1f1b", 1, {}, kGpt + policy});
    for (const char* order : {"1f1b", "zero-bubble-h1", "interleaved"}) {
      const Case c{
          1, 2, 2, 4, "ddp", order, order == std::string("interleaved") ? 2 : 1, {}, kGpt + policy};
      SCOPED_TRACE(c.text());
      expect_equal(train(c), want);
    }
  }
}

/// Replicas whose ranks share sequences, and the weights with them.
TEST_F(Compositions, PoliciesOfLocalStepsTakeSharedSequences) {
  const std::vector<Sets> policies = {{"sync.policy=diloco", "sync.rounds.period_steps=3"},
                                      {"sync.policy=streaming-diloco", "sync.rounds.period_steps=4",
                                       "sync.rounds.fragments=2", "sync.outer.codec=none"},
                                      {"sync.policy=co2", "sync.rounds.period_steps=2"}};
  for (const Sets& policy : policies) {
    const Sets what = kGpt + policy + Sets{"model.shape.context=12"};
    const Trained want = train({1, 2, 1, 1, "ddp", "1f1b", 1, {}, what});
    for (const char* placement : {"zero1", "zero3"}) {
      const Case c{1, 2, 1, 1, placement, "1f1b", 1, {"mesh.axes.sequence=2"}, what};
      SCOPED_TRACE(c.text());
      expect_equal(test::trained(run_of(c), 2 * c.ranks(), next_folder()), want);
    }
  }
}

TEST_F(Compositions, CheckpointsGoFromAnyToAny) {
  const std::vector<Case> parts = {
      {1, 2, 2, 4, "zero1", "interleaved", 2},
      {2, 1, 2, 8, "ddp", "zero-bubble-h1"},
      {1, 1, 3, 4, "ddp", "gpipe", 1, {"pipeline.cuts=1,2"}},
      {1, 4, 2, 2, "zero3", "1f1b"},
      {1, 1, 1, 1, "ddp"},
      {2, 2, 2, 4, "zero1", "interleaved", 2, {"pipeline.cuts=1,2,3"}},
  };
  const std::string run_dir = next_folder();
  Trained got;
  for (size_t part = 0; part < parts.size(); ++part) {
    SCOPED_TRACE(parts[part].text());
    got = test::trained(
        run_of(parts[part], {"train.steps=" + std::to_string(part + 1), "checkpoint.resume=auto"}),
        parts[part].ranks(), run_dir);
  }
  expect_equal(got, serial({}));
}

TEST_F(Compositions, MemoryIsWhatTheAllocatorSawInEveryOrder) {
  std::map<std::string, int64_t> most;
  for (const auto& [order, chunks] :
       std::vector<std::pair<std::string, int64_t>>{{"gpipe", 1},
                                                    {"1f1b", 1},
                                                    {"zero-bubble-h1", 1},
                                                    {"zero-bubble-h2", 1},
                                                    {"interleaved", 2}}) {
    // Enough blocks that the working set of one is nothing beside them.
    const Case c{1, 1, 2, 8, "ddp", order, chunks, {}, kUntied + kFree};
    SCOPED_TRACE(order);
    const train::Outcome outcome = test::train_small(
        run_of(c, {"train.steps=1", "model.shape.layers=16"}), c.ranks(), next_folder());
    test::expect_predicted_memory(outcome);
    for (const int64_t peak : outcome.pool_peak_bytes) most[order] = std::max(most[order], peak);
  }
  EXPECT_LE(most["zero-bubble-h1"], most["1f1b"]);
  EXPECT_GT(most["gpipe"], most["1f1b"]);
}

/// Bytes of messages in a step: of the ledger, the simulator and the cost model.
TEST_F(Compositions, CodedActivationsSendTheBytesOfTheCodec) {
  for (const auto& [order, chunks] : std::vector<std::pair<std::string, int64_t>>{
           {"1f1b", 1}, {"interleaved", 2}, {"zero-bubble-h1", 1}}) {
    SCOPED_TRACE(order);
    const Case c{1, 2, 2, 4, "ddp", order, chunks, {"pipeline.activation_codec=int8/64"}, kGpt};
    strait::Run run = run_of(c, {"train.steps=2"});
    run.output.run_dir = next_folder();
    const Job job = make_job(run, c.ranks());
    const train::Outcome outcome = test::outcome_of(job);
    const int64_t elements = 13 * 24;  // one sequence of 13 tokens
    const int64_t payload = elements, metadata = (elements + 63) / 64 * 4;
    const int64_t messages = 2 * 2 * 4 * (2 * chunks - 1);  // both ways, data ranks, micro-batches
    const auto sent = [](const Ledger& ledger, int64_t steps) {
      return test::coded_messages(ledger, steps, "int8/64");
    };
    const std::pair<int64_t, int64_t> want{messages * payload, messages * metadata};
    EXPECT_EQ(sent(outcome.traffic, 2), want);
    EXPECT_EQ(sent(job.simulated.traffic, 1), want);
    EXPECT_EQ(sent(job.cost.traffic, 1), want);
  }
}

TEST_F(Compositions, CodedActivationsLearnWhatOneRankLearns) {
  for (const auto& [codec, near] :
       std::vector<std::pair<std::string, double>>{{"bf16", 1e-2}, {"int8/64", 2e-2}}) {
    SCOPED_TRACE(codec);
    const Case c{1, 1, 2, 4, "ddp", "1f1b", 1, {"pipeline.activation_codec=" + codec}, kGpt};
    const Trained got = train(c);
    const Trained& want = serial(kGpt);
    EXPECT_NE(got.losses.back(), want.losses.back());
    for (size_t step = 0; step < want.losses.size(); ++step)
      EXPECT_NEAR(got.losses[step], want.losses[step], near * want.losses[step]) << step;
  }
}

/// One update makes weights so large that stages send what is not finite, in place of which a codec
/// has zeros.
TEST_F(Compositions, EvaluationsNoticeWhatACodecCannotHold) {
  const Sets coded = {
      "model.shape.bias=false", "pipeline.activation_codec=int8/64", "train.steps=1",
      "train.clip_norm=0",      "data.validation_share=0.2",         "evaluation.every_steps=1"};
  const Case c{1, 1, 2, 4, "ddp", "1f1b", 1, coded, kGpt};
  EXPECT_TRUE(std::isfinite(train(c).validation));
  const Sets huge = {"optimizer.learning_rate=1e10", "optimizer.warmup_steps=0"};
  EXPECT_TRUE(std::isnan(train(c, huge).validation));
}

}  // namespace
}  // namespace strait
