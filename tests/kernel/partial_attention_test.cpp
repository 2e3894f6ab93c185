// Attention in blocks: any partition of queries and keys merges to whole attention and its
// gradients.
#include "strait/kernel/partial_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "strait/base/random.h"
#include "tests/kernel/edge_vector.h"
#include "tests/kernel/targets.h"

namespace strait::kernel {
namespace {

using Real = long double;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Several heads that share keys and values, of one packed row of documents.
struct Problem {
  int64_t tokens = 0, width = 0, group = 1, window = 0;
  std::vector<int32_t> starts = {};  // empty: one document
  double rate = 0, cap = 0;
};

template <class T>
struct Tensors {
  EdgeVector<T> q, k, v, out_gradient;
};

template <class T>
EdgeVector<T> random(int64_t count, uint64_t seed) {
  const RandomStream stream(seed, "test.partial");
  EdgeVector<T> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(stream.normal(i));
  return values;
}

template <class T>
Tensors<T> tensors_of(const Problem& p) {
  const int64_t narrow = p.tokens * p.width, wide = narrow * p.group;
  return {random<T>(wide, 1), random<T>(narrow, 2), random<T>(narrow, 3), random<T>(wide, 4)};
}

DropoutMask mask_of(const Problem& p) { return {RandomStream(5, "test.dropout"), p.rate}; }

bool attends(const Problem& p, int64_t query, int64_t key) {
  const int64_t start = p.starts.empty() ? 0 : p.starts[query];
  return key <= query && key >= start && (p.window == 0 || key > query - p.window);
}

struct Results {
  std::vector<Real> out, dq, dk, dv;
};

/// Straight from the definition: matrices of probabilities, no tiles.
template <class T>
Results plain(const Problem& p, const Tensors<T>& t) {
  const int64_t stride = p.width * p.group;
  const DropoutMask mask = mask_of(p);
  const Real scale = 1 / std::sqrt(static_cast<Real>(p.width));
  Results r{std::vector<Real>(t.q.size()), std::vector<Real>(t.q.size()),
            std::vector<Real>(t.k.size()), std::vector<Real>(t.k.size())};
  for (int64_t head = 0; head < p.group; ++head)
    for (int64_t i = 0; i < p.tokens; ++i) {
      const int64_t row = i * stride + head * p.width;
      std::vector<Real> chance(p.tokens, 0), kept(p.tokens, 0), slope(p.tokens, 0);
      std::vector<Real> steepness(p.tokens, scale);  // of the score over its product
      Real sum = 0, delta = 0;
      for (int64_t j = 0; j <= i; ++j) {
        if (!attends(p, i, j)) continue;
        Real score = 0;
        for (int64_t c = 0; c < p.width; ++c) {
          score += static_cast<Real>(t.q[row + c]) * static_cast<Real>(t.k[j * p.width + c]);
          slope[j] +=
              static_cast<Real>(t.out_gradient[row + c]) * static_cast<Real>(t.v[j * p.width + c]);
        }
        score *= scale;
        if (p.cap > 0) {
          const Real capped = p.cap * std::tanh(score / p.cap);
          steepness[j] *= 1 - (capped / p.cap) * (capped / p.cap);
          score = capped;
        }
        sum += chance[j] = std::exp(score);
      }
      for (int64_t j = 0; j <= i; ++j) {
        const uint64_t element = (static_cast<uint64_t>(3 + head) << 40) +
                                 (static_cast<uint64_t>(i) << 20) + static_cast<uint64_t>(j);
        kept[j] = p.rate == 0 ? 1 : mask.keeps(element) ? static_cast<Real>(mask.scale) : 0;
        chance[j] /= sum;
        delta += chance[j] * kept[j] * slope[j];
      }
      for (int64_t j = 0; j <= i; ++j) {
        const Real score_slope = chance[j] * (kept[j] * slope[j] - delta) * steepness[j];
        for (int64_t c = 0; c < p.width; ++c) {
          r.out[row + c] += chance[j] * kept[j] * static_cast<Real>(t.v[j * p.width + c]);
          r.dv[j * p.width + c] += chance[j] * kept[j] * static_cast<Real>(t.out_gradient[row + c]);
          r.dq[row + c] += score_slope * static_cast<Real>(t.k[j * p.width + c]);
          r.dk[j * p.width + c] += score_slope * static_cast<Real>(t.q[row + c]);
        }
      }
    }
  return r;
}

struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

std::vector<Range> ranges(const std::vector<int64_t>& cuts) {
  std::vector<Range> found;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) found.push_back({cuts[i], cuts[i + 1]});
  return found;
}

/// Cut positions of a partition; equal neighbours are blocks of nothing.
struct Partition {
  std::vector<int64_t> queries, keys;
};

template <class T>
AttentionCall<T> rows_of(const Problem& p, const Tensors<T>& t, Range queries, Range keys,
                         const DropoutMask& mask) {
  const int64_t stride = p.width * p.group;
  return {.queries = queries.size(),
          .first = queries.begin,
          .head_width = p.width,
          .window = p.window,
          .q = t.q.data() + queries.begin * stride,
          .q_stride = stride,
          .k = t.k.data() + keys.begin * p.width,
          .v = t.v.data() + keys.begin * p.width,
          .kv_stride = p.width,
          .starts = p.starts.empty() ? nullptr : p.starts.data() + queries.begin,
          .mask = &mask,
          .head = 3,
          .cap = p.cap};
}

/// Head `member` of the forward call.
template <class T>
AttentionCall<T> member_of(AttentionCall<T> rows, int64_t member) {
  rows.q += member * rows.head_width;
  rows.head += static_cast<uint64_t>(member);
  return rows;
}

template <class T>
struct Blocks {
  const Problem& p;
  const Tensors<T>& t;
  DropoutMask mask = mask_of(p);
  int64_t stride = p.width * p.group;
  EdgeVector<Wide<T>> out = EdgeVector<Wide<T>>(t.q.size()), dq = out,
                      dk = EdgeVector<Wide<T>>(t.k.size()), dv = dk;

  /// Merges the keys' blocks in order; [group, queries] log-sum-exps.
  EdgeVector<Wide<T>> forward(Range queries, const std::vector<Range>& keys) {
    using W = Wide<T>;
    EdgeVector<W> merged(p.group * queries.size(), -std::numeric_limits<W>::infinity());
    for (const Range& block : keys)
      for (int64_t member = 0; member < p.group; ++member) {
        EdgeVector<W> part(queries.size() * p.width, W{77}), sums(queries.size(), W{77});
        AttentionCall<T> rows = member_of(rows_of(p, t, queries, block, mask), member);
        rows.log_sum_exp = sums.data();
        partial_attention<T>({rows, block.size(), block.begin, part.data(), p.width});
        merge_attention<W>(
            {queries.size(), p.width, out.data() + queries.begin * stride + member * p.width,
             stride, merged.data() + member * queries.size(), part.data(), p.width, sums.data()});
      }
    return merged;
  }

  void backward(Range queries, const std::vector<Range>& keys, EdgeVector<Wide<T>>& merged) {
    using W = Wide<T>;
    EdgeVector<T> narrow(out.begin(), out.end());
    EdgeVector<W> delta(merged.size());
    const int64_t first = queries.begin * stride;
    for (int64_t member = 0; member < p.group; ++member)
      attention_delta<T>({queries.size(), p.width, narrow.data() + first + member * p.width, stride,
                          t.out_gradient.data() + first + member * p.width, stride,
                          delta.data() + member * queries.size()});
    for (const Range& block : keys) {
      AttentionCall<T> rows = rows_of(p, t, queries, block, mask);
      rows.log_sum_exp = merged.data();
      partial_attention_backward<T>({rows, block.size(), block.begin, t.out_gradient.data() + first,
                                     stride, delta.data(), dq.data() + first, stride,
                                     dk.data() + block.begin * p.width,
                                     dv.data() + block.begin * p.width, p.width, p.group});
    }
  }
};

template <class W>
void expect_near(const EdgeVector<W>& got, const std::vector<Real>& want, Real limit,
                 const char* what) {
  Real norm = 0, error = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    norm += want[i] * want[i];
    error += (static_cast<Real>(got[i]) - want[i]) * (static_cast<Real>(got[i]) - want[i]);
  }
  EXPECT_LE(std::sqrt(error), limit * std::sqrt(norm)) << what;  // false for NaN as well
}

template <class T>
void check(const Problem& p, const Partition& cuts, Real limit) {
  const Tensors<T> t = tensors_of<T>(p);
  const Results want = plain(p, t);
  Blocks<T> blocks{p, t};
  for (const Range& queries : ranges(cuts.queries)) {
    EdgeVector<Wide<T>> merged = blocks.forward(queries, ranges(cuts.keys));
    blocks.backward(queries, ranges(cuts.keys), merged);
  }
  expect_near(blocks.out, want.out, limit, "out");
  expect_near(blocks.dq, want.dq, limit, "dq");
  expect_near(blocks.dk, want.dk, limit, "dk");
  expect_near(blocks.dv, want.dv, limit, "dv");
}

/// Documents of 37 tokens, the borders of which no partition knows.
std::vector<int32_t> documents(int64_t tokens) {
  std::vector<int32_t> starts(tokens);
  for (int64_t i = 0; i < tokens; ++i) starts[i] = static_cast<int32_t>(i / 37 * 37);
  return starts;
}

std::vector<Problem> problems() {
  return {{1, 1},
          {7, 5},
          {64, 16},
          {65, 33},
          {150, 8, 3},
          {150, 8, 2, 0, documents(150)},
          {150, 8, 1, 40},
          {131, 8, 2, 0, documents(131), 0.2},
          {150, 8, 3, 0, {}, 0, 1.5},
          {131, 8, 2, 40, documents(131), 0.2, 0.7}};
}

/// One block; halves; blocks of nothing at both ends and in the middle; many of prime size.
std::vector<Partition> partitions(int64_t tokens) {
  std::vector<int64_t> small;
  for (int64_t at = 0; at < tokens; at += 13) small.push_back(at);
  small.push_back(tokens);
  const int64_t half = tokens / 2;
  return {{{0, tokens}, {0, tokens}},
          {{0, half, tokens}, {0, half, tokens}},
          {{0, 0, half, half, tokens, tokens}, {0, 0, tokens / 3, tokens / 3, tokens, tokens}},
          {small, {0, tokens}},
          {{0, tokens}, small}};
}

TEST(PartialAttentionTest, AnyPartitionEqualsWholeAttention) {
  on_every_target([] {
    for (const Problem& p : problems())
      for (const Partition& cuts : partitions(p.tokens)) {
        SCOPED_TRACE(testing::Message() << p.tokens << " tokens, " << cuts.queries.size() << " x "
                                        << cuts.keys.size() << " cuts");
        check<double>(p, cuts, 1e-12L);
        check<float>(p, cuts, 1e-5L);
      }
  });
}

/// Of one head.
template <class T>
void check_whole(const Problem& p, Real limit) {
  const Tensors<T> t = tensors_of<T>(p);
  const Results want = plain(p, t);
  const DropoutMask mask = mask_of(p);
  EdgeVector<T> out(t.q.size()), dq(t.q.size()), dk(t.k.size()), dv(t.k.size());
  EdgeVector<Wide<T>> sums(p.tokens), delta(p.tokens), dq_sum(t.q.size());
  AttentionCall<T> rows = rows_of(p, t, {0, p.tokens}, {0, p.tokens}, mask);
  rows.out_stride = p.width;
  rows.out = out.data();
  rows.log_sum_exp = sums.data();
  attention(rows);
  attention_backward<T>({rows, t.out_gradient.data(), rows.out_stride, dq.data(), dk.data(),
                         dv.data(), p.width, delta.data(), dq_sum.data()});
  expect_near(out, want.out, limit, "out");
  expect_near(dq, want.dq, limit, "dq");
  expect_near(dk, want.dk, limit, "dk");
  expect_near(dv, want.dv, limit, "dv");
}

/// A cap of 1000 hardly acts, one of 0.3 is nearly a sign.
TEST(PartialAttentionTest, WholeAttentionIsCappedToo) {
  on_every_target([] {
    for (const double cap : {1000.0, 1.5, 0.3})
      for (const int64_t tokens : {7, 64, 131}) {
        SCOPED_TRACE(testing::Message() << tokens << " tokens, cap " << cap);
        const Problem p{tokens, 8, 1, 40, documents(tokens), 0.2, cap};
        check_whole<double>(p, 1e-12L);
        check_whole<float>(p, 1e-5L);
        check_whole<Bfloat16>(p, 0.02L);
      }
  });
}

/// Queries, keys, probabilities and score gradients carry 8 bits.
TEST(PartialAttentionTest, Bf16KeepsWideSums) {
  for (const Problem& p : problems())
    for (const Partition& cuts : partitions(p.tokens)) check<Bfloat16>(p, cuts, 0.02L);
}

/// What an engine that gathers keys promises: the bits of one rank, however queries are cut.
template <class T>
void check_bits(const Problem& p) {
  const Tensors<T> t = tensors_of<T>(p);
  const DropoutMask mask = mask_of(p);
  EdgeVector<T> whole(t.q.size());
  EdgeVector<Wide<T>> sums(p.tokens), part_sums(p.tokens);
  AttentionCall<T> rows = rows_of(p, t, {0, p.tokens}, {0, p.tokens}, mask);
  rows.out = whole.data();
  rows.out_stride = p.width;
  rows.log_sum_exp = sums.data();
  attention(rows);
  EdgeVector<Wide<T>> out(t.q.size());
  for (const Range& queries : ranges({0, p.tokens / 3, p.tokens / 2, p.tokens})) {
    AttentionCall<T> some = rows_of(p, t, queries, {0, queries.end}, mask);
    some.log_sum_exp = part_sums.data() + queries.begin;
    partial_attention<T>({some, queries.end, 0, out.data() + queries.begin * p.width, p.width});
  }
  for (size_t i = 0; i < out.size(); ++i)
    ASSERT_EQ(static_cast<Wide<T>>(T(out[i])), static_cast<Wide<T>>(whole[i])) << i;
  EXPECT_EQ(part_sums, sums);
}

TEST(PartialAttentionTest, AllKeysInOneBlockGiveTheBitsOfWholeAttention) {
  for (const Problem& p : {Problem{300, 16}, Problem{300, 16, 1, 0, documents(300)},
                           Problem{97, 5, 1, 0, {}, 0.2}, Problem{97, 5, 1, 0, {}, 0, 1.5}}) {
    check_bits<double>(p);
    check_bits<float>(p);
    check_bits<Bfloat16>(p);
  }
}

TEST(PartialAttentionTest, ABlockThatNobodyAttendsGivesZerosAndChangesNothing) {
  const Problem p{20, 4};
  const Tensors<double> t = tensors_of<double>(p);
  const DropoutMask mask = mask_of(p);
  EdgeVector<double> out(20 * 4, 9.0), sums(20, 9.0);
  AttentionCall<double> rows = rows_of(p, t, {0, 10}, {10, 20}, mask);  // later keys
  rows.log_sum_exp = sums.data();
  partial_attention<double>({rows, 10, 10, out.data(), 4});
  partial_attention<double>({rows, 0, 10, out.data(), 4});
  EXPECT_TRUE(std::all_of(out.begin(), out.begin() + 40, [](double x) { return x == 0; }));
  EXPECT_TRUE(
      std::all_of(sums.begin(), sums.begin() + 10, [](double x) { return x == -kInfinity; }));
  EXPECT_EQ(out[40], 9.0);
  EdgeVector<double> delta(10, 1.0), dq(40, 2.0), dk(40, 3.0), dv(40, 4.0);
  partial_attention_backward<double>({rows, 10, 10, t.out_gradient.data(), 4, delta.data(),
                                      dq.data(), 4, dk.data(), dv.data(), 4, 1});
  EXPECT_EQ(dq, EdgeVector<double>(40, 2.0));
  EXPECT_EQ(dk, EdgeVector<double>(40, 3.0));
  EXPECT_EQ(dv, EdgeVector<double>(40, 4.0));
}

struct Part {
  double out = 0, sum = 0;
};
Part merged(Part a, const Part& b) {
  merge_attention<double>({1, 1, &a.out, 1, &a.sum, &b.out, 1, &b.sum});
  return a;
}

/// Z12: the values of a row have one sign here, so that 4 units of the last place mean something.
TEST(PartialAttentionTest, MergingAMillionPartsNeverOverflowsAndHardlyDependsOnTheOrder) {
  const RandomStream stream(9, "test.merge");
  const double unit = std::numeric_limits<double>::epsilon();
  for (uint64_t i = 0; i < 1000000; ++i) {
    const double spread = i % 3 == 0 ? 1e4 : i % 3 == 1 ? 30 : 1;
    Part a{1 + stream.uniform(4 * i), spread * (2 * stream.uniform(4 * i + 1) - 1)};
    Part b{1 + stream.uniform(4 * i + 2), spread * (2 * stream.uniform(4 * i + 3) - 1)};
    if (i % 17 == 0) b = {0, -kInfinity};
    if (i % 34 == 0) a = {0, -kInfinity};
    const Part ab = merged(a, b), ba = merged(b, a);
    ASSERT_FALSE(std::isnan(ab.out) || std::isnan(ab.sum)) << i;
    ASSERT_LE(std::abs(ab.out - ba.out), 4 * unit * std::abs(ab.out)) << i;
    if (a.sum != -kInfinity || b.sum != -kInfinity) {
      ASSERT_LE(std::abs(ab.sum - ba.sum), 4 * unit * std::abs(ab.sum)) << i;
      ASSERT_GE(ab.sum, std::max(a.sum, b.sum));
    }
  }
}

TEST(PartialAttentionTest, MergeEqualsTheSoftmaxOverBothSets) {
  on_every_target([] {
    for (const double difference : {0.0, 1.0, -3.5, 40.0, -700.0, 9000.0}) {
      EdgeVector<double> out = {1, -2, 3}, other = {4, 5, -6};
      double sum = 0.25, second = sum + difference;
      merge_attention<double>({1, 3, out.data(), 3, &sum, other.data(), 3, &second});
      const Real share = 1 / (1 + std::exp(static_cast<Real>(-difference)));
      const std::vector<Real> a = {1, -2, 3}, b = {4, 5, -6};
      for (size_t i = 0; i < 3; ++i)
        EXPECT_NEAR(out[i], static_cast<double>((1 - share) * a[i] + share * b[i]), 1e-14);
      const Real want = std::max<Real>(0, difference) +
                        std::log1p(std::exp(-std::abs(static_cast<Real>(difference))));
      EXPECT_NEAR(sum, static_cast<double>(0.25 + want), 1e-11);
    }
  });
}

}  // namespace
}  // namespace strait::kernel
