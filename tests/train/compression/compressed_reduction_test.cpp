// The compressed all-reduce of every-step training (compression.codec; specs/low-communication.md
// 3.b, invariants L7 and L8) against the plain form: cut every layer, encode, sum in rank order,
// encode, and decode what everybody gets. And its bytes.
#include <gtest/gtest.h>

#include <cmath>

#include "strait/base/random.h"
#include "tests/train/reduction.h"

namespace strait {
namespace {

using test::Reduced;
using test::ReductionCase;
using Numbers = std::vector<float>;

/// Layers of 301, 40 as they are, 1,000, and 3 that are fewer than ranks.
std::string layers_in(const std::string& codec, int64_t ranks) {
  return codec + ":301|none:40|" + codec + ":1000|none:3@" + std::to_string(ranks);
}

ReductionCase case_of(const std::string& codec, int64_t ranks) {
  ReductionCase c{1, ranks, 1344, codec, false};
  c.layers = codec::parse_runs(layers_in(codec, ranks));
  return c;
}

/// Layers of very different size, as gradients are.
float gradient(int64_t rank, int64_t, int64_t element) {
  const RandomStream stream(11, "layers" + std::to_string(rank));
  const float size = element < 301 ? 1e-4f : element < 341 ? 1.0f : 30.0f;
  return size * static_cast<float>(stream.normal(static_cast<uint64_t>(element)));
}

Numbers coded(const codec::CodecSpec& codec, const Numbers& x) {
  const int64_t count = static_cast<int64_t>(x.size());
  std::vector<uint8_t> piece(static_cast<size_t>(codec::encoded_bytes(codec, count)));
  static_cast<void>(codec::encode(codec, {x.data(), Dtype::kFloat32, count}, piece));
  Numbers y(x.size());
  codec::decode(codec, piece, {y.data(), Dtype::kFloat32, count});
  return y;
}

/// Elements [begin, end) of all ranks: encoded, added, encoded.
Numbers sum_of(const codec::CodecSpec& codec, int64_t ranks, int64_t begin, int64_t end) {
  Numbers sum;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    Numbers part;
    for (int64_t i = begin; i < end; ++i) part.push_back(gradient(rank, 0, i));
    part = coded(codec, part);
    if (rank == 0)
      sum = part;
    else
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  return coded(codec, sum);
}

Numbers plain_reduction(const std::string& codec, int64_t ranks) {
  const std::pair<const char*, int64_t> layers[] = {
      {codec.c_str(), 301}, {"none", 40}, {codec.c_str(), 1000}, {"none", 3}};
  Numbers all;
  for (const auto& [name, count] : layers) {
    const int64_t first = static_cast<int64_t>(all.size()), grain = (count + ranks - 1) / ranks;
    for (int64_t at = 0; at < count; at += grain) {
      const Numbers part =
          sum_of(codec::parse_codec(name), ranks, first + at, first + std::min(at + grain, count));
      all.insert(all.end(), part.begin(), part.end());
    }
  }
  return all;
}

TEST(CompressedReduction, EqualsThePlainFormOnAllRanks) {
  for (const char* codec : {"qsgd1/64", "qsgd3/7", "qsgd4/64", "int8/64", "int4/16", "e3m0/16"})
    for (const int64_t ranks : {2, 3, 4, 8}) {
      const Numbers want = plain_reduction(codec, ranks);
      for (const Reduced& got : test::reduce_on_ranks(case_of(codec, ranks), 1, gradient)) {
        EXPECT_EQ(got.sums.at(0), want) << codec << " " << ranks;
        EXPECT_EQ(got.not_finite, 0);
      }
    }
}

// L8: where nothing is encoded, the plain all-reduce.
TEST(CompressedReduction, WithoutACodecIsThePlainAllReduce) {
  for (const int64_t ranks : {2, 3, 4, 8}) {
    const ReductionCase plain{1, ranks, 1344, "none", false};
    const auto want = test::reduce_on_ranks(plain, 1, gradient);
    ReductionCase whole = plain;
    whole.codec = "qsgd4/64";
    whole.layers = codec::parse_runs("none:1344@" + std::to_string(ranks));
    const auto got = test::reduce_on_ranks(whole, 1, gradient);
    for (size_t rank = 0; rank < got.size(); ++rank)
      EXPECT_EQ(got[rank].sums, want[rank].sums) << ranks;
  }
}

// A small layer beside a large one keeps its own scale: with blocks across their border it would
// be lost.
TEST(CompressedReduction, LayersDoNotShareBlocks) {
  const auto error = [](const ReductionCase& c) {
    const auto got = test::reduce_on_ranks(c, 1, gradient);
    double lost = 0, norm = 0;
    for (int64_t i = 0; i < 301; ++i) {
      const double want = static_cast<double>(gradient(0, 0, i)) + gradient(1, 0, i);
      lost += std::pow(want - got[0].sums[0][i], 2);
      norm += std::pow(want, 2);
    }
    return std::sqrt(lost / norm);
  };
  const ReductionCase whole{1, 2, 1344, "qsgd4/512", false};
  EXPECT_LT(error(case_of("qsgd4/512", 2)), 0.25);
  EXPECT_GT(error(whole), 0.9);
}

TEST(CompressedReduction, NumbersThatAreNotFiniteAreCounted) {
  const auto got = test::reduce_on_ranks(case_of("qsgd4/64", 2), 1,
                                         [](int64_t rank, int64_t round, int64_t element) {
                                           if (rank == 1 && (element == 5 || element == 310))
                                             return INFINITY;
                                           return gradient(rank, round, element);
                                         });
  EXPECT_GE(got[0].not_finite + got[1].not_finite, 2);
}

/// Payload and scales over all rows.
std::pair<int64_t, int64_t> bytes_of(const Ledger& ledger) {
  std::pair<int64_t, int64_t> bytes;
  for (const Traffic& row : ledger.rows()) {
    bytes.first += row.payload_bytes;
    bytes.second += row.metadata_bytes;
  }
  return bytes;
}

// By the specification: a rank sends n - 1 pieces of others' parts, and n - 1 times its own.
TEST(CompressedReduction, BytesAreThoseOfTheClosedForm) {
  for (const int64_t n : {2, 3, 4, 8}) {
    const ReductionCase c = case_of("qsgd3/64", n);
    const int64_t large = (1000 + n - 1) / n, middle = (301 + n - 1) / n;
    const int64_t payload = (large * 3 + 63) / 64 * 8 + (middle * 3 + 63) / 64 * 8 +
                            4 * ((40 + n - 1) / n) + 4 * ((3 + n - 1) / n);
    const int64_t scales = (large + 63) / 64 * 8 + (middle + 63) / 64 * 8;
    const std::pair<int64_t, int64_t> want = {2 * n * (n - 1) * payload, 2 * n * (n - 1) * scales};
    Ledger all;
    for (const Reduced& rank : test::reduce_on_ranks(c, 1, gradient)) all.merge(rank.traffic);
    EXPECT_EQ(bytes_of(all), want) << n;
  }
}

}  // namespace
}  // namespace strait
