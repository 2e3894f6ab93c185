// The compressed all-reduce of codecs that keep residuals and of sparse ones: against the plain
// form with the residuals of both hops, what is sent and what is left adding up to what was given,
// exact bytes, and runs that are stopped and go on.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <map>

#include "strait/base/random.h"
#include "strait/codec/error_feedback.h"
#include "tests/train/reduction.h"
#include "tests/train/residuals.h"
#include "tests/train/small_run.h"

namespace strait {
namespace {

using test::Reduced;
using test::ReductionCase;
using test::small_run;
using test::TemporaryFolder;
using test::train_small;
using Numbers = std::vector<float>;

constexpr int64_t kElements = 1344;

/// Layers of 301, 40 as they are, 1,000, and 3 that are fewer than ranks.
std::string layers_in(const std::string& codec, int64_t ranks) {
  return codec + ":301|none:40|" + codec + ":1000|none:3@" + std::to_string(ranks);
}

ReductionCase case_of(const std::string& codec, int64_t ranks) {
  ReductionCase c{1, ranks, kElements, codec, false};
  c.layers = codec::parse_runs(layers_in(codec, ranks));
  return c;
}

/// Whole numbers, so that sums are exact.
float gradient(int64_t rank, int64_t round, int64_t element) {
  const RandomStream stream(11, "layers" + std::to_string(rank));
  return static_cast<float>(
      std::round(40 * stream.normal(static_cast<uint64_t>(round * kElements + element))));
}

/// Whole sums with the residuals of all ranks (first hop) and of the owners (second hop).
class PlainReduction {
 public:
  PlainReduction(const std::string& codec, int64_t ranks)
      : runs_(codec::parse_runs(layers_in(codec, ranks))),
        first_(static_cast<size_t>(ranks), Numbers(kElements, 0.0f)),
        second_(kElements, 0.0f) {}

  Numbers reduce(int64_t round) {
    Numbers all(kElements);
    int64_t begin = 0;
    for (size_t i = 0; i < runs_.runs.size(); begin += runs_.runs[i++].elements)
      for (int64_t at = 0; at < runs_.runs[i].elements; at += runs_.grain(i)) {
        const int64_t end = std::min(at + runs_.grain(i), runs_.runs[i].elements);
        sum_part(runs_.runs[i].codec, round, begin + at, begin + end, all);
      }
    return all;
  }

 private:
  void sum_part(const codec::CodecSpec& spec, int64_t round, int64_t begin, int64_t end,
                Numbers& all) {
    const size_t size = static_cast<size_t>(end - begin);
    Numbers sum(size, 0.0f);
    for (size_t rank = 0; rank < first_.size(); ++rank) {
      Numbers x(size);
      for (size_t i = 0; i < size; ++i)
        x[i] = gradient(static_cast<int64_t>(rank), round, begin + static_cast<int64_t>(i));
      const Numbers sent = send(spec, round, begin, x, first_[rank]);
      for (size_t i = 0; i < size; ++i) sum[i] = rank == 0 ? sent[i] : sum[i] + sent[i];
    }
    const Numbers sent = send(spec, round, begin, sum, second_);
    std::copy(sent.begin(), sent.end(), all.begin() + begin);
  }

  static Numbers send(const codec::CodecSpec& spec, int64_t round, int64_t begin, const Numbers& x,
                      Numbers& residual) {
    const int64_t count = static_cast<int64_t>(x.size());
    Numbers y = x, decoded(x.size());
    if (spec.error_feedback)
      for (size_t i = 0; i < y.size(); ++i) y[i] += residual[static_cast<size_t>(begin) + i];
    std::vector<uint8_t> piece(static_cast<size_t>(codec::encoded_bytes(spec, count)));
    const uint64_t key = RandomStream(0, "g.unit", static_cast<uint64_t>(round)).key();
    EXPECT_EQ(codec::encode(spec, {y.data(), Dtype::kFloat32, count}, piece, 1,
                            {key, static_cast<uint64_t>(begin)}),
              0);
    codec::decode(spec, piece, {decoded.data(), Dtype::kFloat32, count});
    const float keep = codec::is_sparse(spec) ? 0.0f : 0.8f;
    for (size_t i = 0; spec.error_feedback && i < y.size(); ++i) {
      float& e = residual[static_cast<size_t>(begin) + i];
      e = keep * e + (1.0f - keep) * (y[i] - decoded[i]);
    }
    return decoded;
  }

  codec::Runs runs_;
  std::vector<Numbers> first_;
  Numbers second_;
};

TEST(CompressedFeedback, EqualsThePlainFormOnAllRanks) {
  for (const char* codec :
       {"topk/0.02", "topk/0.05+ef", "randomk/0.1", "randomk/0.1+ef", "qsgd2/64+ef", "int4/16+ef"})
    for (const int64_t ranks : {2, 3, 4, 8}) {
      constexpr int64_t kRounds = 3;
      const auto got = test::reduce_on_ranks(case_of(codec, ranks), kRounds, gradient);
      PlainReduction plain(codec, ranks);
      for (int64_t round = 0; round < kRounds; ++round) {
        const Numbers want = plain.reduce(round);
        for (const Reduced& rank : got)
          EXPECT_EQ(rank.sums.at(static_cast<size_t>(round)), want)
              << codec << " " << ranks << " round " << round;
      }
    }
}

// L11: of the sparse codecs exactly, as all numbers are whole.
TEST(CompressedFeedback, WhatIsSentAndWhatIsLeftIsWhatWasGiven) {
  for (const char* codec : {"topk/0.02+ef", "randomk/0.05+ef"})
    for (const int64_t ranks : {2, 3, 4}) {
      constexpr int64_t kRounds = 12;
      const auto got = test::reduce_on_ranks(case_of(codec, ranks), kRounds, gradient);
      const codec::Runs runs = codec::parse_runs(layers_in(codec, ranks));
      Numbers given(kElements, 0.0f), there(kElements, 0.0f);
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const Reduced& of = got[static_cast<size_t>(rank)];
        ASSERT_EQ(of.residuals.size(), 2u);
        ASSERT_EQ(static_cast<int64_t>(of.residuals[0].size()), kElements);
        ASSERT_EQ(static_cast<int64_t>(of.residuals[1].size()), runs.part_elements());
        for (int64_t i = 0; i < kElements; ++i) {
          for (int64_t round = 0; round < kRounds; ++round)
            given[static_cast<size_t>(i)] += gradient(rank, round, i);
          there[static_cast<size_t>(i)] += of.residuals[0][static_cast<size_t>(i)];
        }
        int64_t first = 0, packed = 0;
        for (size_t run = 0; run < runs.runs.size(); ++run) {
          const int64_t grain = runs.grain(run), length = runs.runs[run].elements;
          for (int64_t i = rank * grain; i < std::min((rank + 1) * grain, length); ++i)
            there[static_cast<size_t>(first + i)] +=
                of.residuals[1][static_cast<size_t>(packed + i - rank * grain)];
          first += length;
          packed += grain;
        }
      }
      int64_t apart = 0;
      for (int64_t i = 0; i < kElements; ++i) {
        float sent = 0;
        for (const Numbers& sum : got[0].sums) sent += sum[static_cast<size_t>(i)];
        EXPECT_EQ(sent + there[static_cast<size_t>(i)], given[static_cast<size_t>(i)]) << i;
        apart += sent != given[static_cast<size_t>(i)];
      }
      EXPECT_GT(apart, kElements / 4) << "nothing was lost, so nothing was shown";
    }
}

// What all have sent is what is sent of the sum: the second hop loses nothing.
TEST(CompressedFeedback, RandomkLosesNothingOnTheSecondHop) {
  for (const Reduced& rank : test::reduce_on_ranks(case_of("randomk/0.05+ef", 3), 4, gradient)) {
    EXPECT_EQ(std::ranges::count_if(rank.residuals[1], [](float e) { return e != 0; }), 0);
    EXPECT_GT(std::ranges::count_if(rank.residuals[0], [](float e) { return e != 0; }), 1000);
  }
}

// By the specification k (4 + 4) bytes of a piece; random-k 4 k and 8.
TEST(CompressedFeedback, BytesAreThoseOfTheClosedForm) {
  for (const bool top : {true, false})
    for (const int64_t n : {2, 3, 4, 8}) {
      const int64_t large = (1000 + n - 1) / n, middle = (301 + n - 1) / n;
      const int64_t kept = large / 20 + middle / 20;
      const int64_t payload = 4 * kept + 4 * ((40 + n - 1) / n) + 4 * ((3 + n - 1) / n);
      const int64_t metadata = top ? 4 * kept : 16;
      Ledger all;
      const ReductionCase c = case_of(top ? "topk/0.05+ef" : "randomk/0.05", n);
      for (const Reduced& rank : test::reduce_on_ranks(c, 1, gradient)) all.merge(rank.traffic);
      std::pair<int64_t, int64_t> bytes;
      for (const Traffic& row : all.rows()) {
        bytes.first += row.payload_bytes;
        bytes.second += row.metadata_bytes;
      }
      const std::pair<int64_t, int64_t> want = {2 * n * (n - 1) * payload,
                                                2 * n * (n - 1) * metadata};
      EXPECT_EQ(bytes, want) << top << " " << n;
    }
}

// Each encode draws for itself, from streams that the seed, the update, the rank and the element
// say.
TEST(CompressedFeedback, StochasticRoundingIsDrawnAnewByEveryEncode) {
  const ReductionCase c = case_of("qsgd2/64+stochastic", 4);
  const auto same = [](int64_t, int64_t, int64_t element) { return gradient(0, 0, element); };
  const auto got = test::reduce_on_ranks(c, 2, same), again = test::reduce_on_ranks(c, 2, same);
  for (const Reduced& rank : got) EXPECT_EQ(rank.sums, got[0].sums);
  EXPECT_EQ(got[0].sums, again[0].sums);
  EXPECT_NE(got[0].sums[0], got[0].sums[1]);
  // Ranks of equal gradients and equal draws would decode 4 times one of 4 levels at most.
  std::map<float, int64_t> values;
  for (size_t i = 0; i < 64; ++i) ++values[got[0].sums[0][i]];
  EXPECT_LE(values.size(), 4u);
  double error = 0, size = 0;
  const auto plain = test::reduce_on_ranks(case_of("qsgd8/64", 4), 1, same);
  for (size_t i = 0; i < kElements; ++i) {
    error += std::pow(got[0].sums[0][i] - plain[0].sums[0][i], 2);
    size += std::pow(plain[0].sums[0][i], 2);
  }
  EXPECT_GT(error, 0);
  EXPECT_LT(error, size);
}

class CompressedTraining : public ::testing::Test {
 protected:
  strait::Run run_of(const std::string& codec, std::vector<std::string> sets) {
    sets.insert(sets.end(), {"placement.preset=ddp", "compression.codec=" + codec,
                             "compression.skip_below_elements=200", "train.precision=fp32",
                             "optimizer.decay_steps=12"});
    return small_run(folder_.path(), sets);
  }
  TemporaryFolder folder_;
};

TEST_F(CompressedTraining, ResumedRunsEndWithTheSameBits) {
  int number = 0;
  for (const char* codec : {"topk/0.05+ef", "randomk/0.1+ef", "randomk/0.5", "qsgd3/64+ef",
                            "qsgd4/64+stochastic", "powersgd/2", "powersgd/2+ef"}) {
    const std::string name = folder_.path() + "/" + std::to_string(number++);
    const auto whole = train_small(run_of(codec, {"train.steps=12"}), 4, name + "w");
    train_small(run_of(codec, {"train.steps=5", "checkpoint.every_steps=2"}), 4, name + "p");
    const auto resumed =
        train_small(run_of(codec, {"train.steps=12", "checkpoint.resume=auto"}), 4, name + "p");
    EXPECT_EQ(resumed.parameter_hash, whole.parameter_hash) << codec;
    EXPECT_LT(whole.losses.back(), whole.losses.front()) << codec;
  }
}

// Loss and gradient norm are finite, since factors are made without what is not.
TEST_F(CompressedTraining, NumbersThatCodecsCannotHoldAreNamed) {
  strait::Run run = run_of("powersgd/2", {"train.steps=2", "train.clip_norm=0"});
  try {
    const Job job = make_job(run, 2);
    train::Outcome outcome;
    train::Hooks hooks;
    hooks.before_op = [](int64_t rank, const runtime::Instance& instance) {
      if (rank == 1 && instance.op->kernel == &strategy::kProjectRight)
        static_cast<float*>(instance.find_write(strategy::kProjectedGradient)->data)[0] = INFINITY;
    };
    train::train(job, {}, std::atomic<int>{0}, outcome, hooks);
    FAIL() << "it went on";
  } catch (const NonFinite& error) {
    EXPECT_NE(std::string(error.what()).find("codecs met"), std::string::npos) << error.what();
  }
}

// Each new sender begins with its share of the sum, on both hops.
TEST_F(CompressedTraining, OtherRanksShareTheResiduals) {
  const std::string saved = folder_.path() + "/saved";
  train_small(run_of("topk/0.05+ef", {"train.steps=4"}), 4, saved);
  const auto before = test::owed(saved);
  for (const int64_t ranks : {2, 3, 8}) {
    strait::Run run = run_of("topk/0.05+ef", {"train.steps=12", "checkpoint.resume=" + saved});
    run.output.run_dir = folder_.path() + "/" + std::to_string(ranks);
    const std::atomic<int> stop{SIGTERM};  // before the first step: it loads and saves
    train::Outcome outcome;
    train::train(make_job(run, ranks), {}, stop, outcome);
    const auto after = test::owed(run.output.run_dir);
    ASSERT_EQ(after.size(), before.size());
    for (const auto& [name, sum] : after) {
      double apart = 0, largest = 0;
      for (size_t i = 0; i < sum.size(); ++i) {
        apart = std::max(apart, std::abs(sum[i] - before.at(name)[i]));
        largest = std::max(largest, std::abs(sum[i]));
      }
      EXPECT_GT(largest, 0) << name;
      EXPECT_LE(apart, 1e-6 * largest) << name << " on " << ranks;
    }
  }
}

}  // namespace
}  // namespace strait
