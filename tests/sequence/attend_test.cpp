// Engines of attention over ranks that are slots of one process: equal to one rank, with the pairs
// and bytes of the closed forms.
#include "strait/sequence/attend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "strait/base/random.h"
#include "strait/kernel/attention.h"
#include "strait/kernel/partial_attention.h"

namespace strait::sequence {
namespace {

/// One document, rows in order of positions.
template <class T>
struct Document {
  int64_t length = 0;
  Heads heads;
  std::vector<T> q, k, v, out_gradient;
};
template <class T>
std::vector<T> random(int64_t count, uint64_t seed) {
  const RandomStream stream(seed, "test.attend");
  std::vector<T> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(stream.normal(i));
  return values;
}
template <class T>
Document<T> document_of(int64_t length, const Heads& heads) {
  const int64_t h = length * heads.query_columns(), k = length * heads.key_columns();
  return {length, heads, random<T>(h, 1), random<T>(k, 2), random<T>(k, 3), random<T>(h, 4)};
}

template <class T>
struct Results {
  std::vector<Wide<T>> out, dq, dk, dv;
};

/// Rows of some positions, and back.
template <class T>
std::vector<T> pick(const std::vector<T>& rows, int64_t columns, const std::vector<Span>& spans) {
  std::vector<T> some;
  for (const Span& span : spans)
    some.insert(some.end(), rows.begin() + span.begin * columns, rows.begin() + span.end * columns);
  return some;
}
template <class T>
void put(const std::vector<T>& some, int64_t columns, const std::vector<Span>& spans,
         std::vector<T>& rows) {
  auto from = some.begin();
  for (const Span& span : spans) {
    std::copy_n(from, span.size() * columns, rows.begin() + span.begin * columns);
    from += span.size() * columns;
  }
}

/// The products that a call names make its scores, as in whole attention.
TEST(AttendProducts, AreThoseOfTheCall) {
  using kernel::NarrowProducts;
  const auto d = document_of<Bfloat16>(48, {1, 1, 16});
  const std::vector<Span> all = {{0, d.length}};
  for (const NarrowProducts products : {NarrowProducts::kWidened, NarrowProducts::kPlainTiles}) {
    std::vector<Bfloat16> out(d.q.size());
    std::vector<float> sums(48), wide(d.q.size()), merged(48);
    kernel::attention<Bfloat16>({.queries = d.length,
                                 .head_width = 16,
                                 .q = d.q.data(),
                                 .q_stride = 16,
                                 .k = d.k.data(),
                                 .v = d.v.data(),
                                 .kv_stride = 16,
                                 .out = out.data(),
                                 .out_stride = 16,
                                 .log_sum_exp = sums.data(),
                                 .products = products});
    AttendCall<Bfloat16> call{.query_spans = all,
                              .key_spans = all,
                              .heads = d.heads,
                              .q = d.q.data(),
                              .q_stride = 16,
                              .k = d.k.data(),
                              .v = d.v.data(),
                              .kv_stride = 16,
                              .log_sum_exp = merged.data(),
                              .products = products};
    begin_attention(call, wide.data(), 16);
    attend(call, wide.data(), 16);
    EXPECT_EQ(merged, sums) << static_cast<int>(products);
  }
}

/// One rank alone, by the kernels for whole attention.
template <class T>
Results<T> whole(const Document<T>& d) {
  const int64_t width = d.heads.width, h = d.heads.query_columns(), k = d.heads.key_columns();
  const int64_t group = d.heads.queries / d.heads.keys;
  std::vector<T> out(d.q.size()), dq(d.q.size());
  std::vector<Wide<T>> sums(d.heads.queries * d.length), delta(sums.size()), dq_sum(d.q.size());
  // Gradients of keys have the rows of those of queries.
  std::vector<T> dk(d.length * h), dv(d.length * h);
  for (int64_t head = 0; head < d.heads.queries; ++head) {
    const int64_t key = head / group * width;
    kernel::attention<T>({.queries = d.length,
                          .head_width = width,
                          .q = d.q.data() + head * width,
                          .q_stride = h,
                          .k = d.k.data() + key,
                          .v = d.v.data() + key,
                          .kv_stride = k,
                          .out = out.data() + head * width,
                          .out_stride = h,
                          .log_sum_exp = sums.data() + head * d.length});
  }
  for (int64_t key = 0; key < d.heads.keys; ++key) {
    const int64_t first = key * group, column = first * width;
    kernel::AttentionBackwardCall<T> call;
    call.forward = {.queries = d.length,
                    .head_width = width,
                    .q = d.q.data() + column,
                    .q_stride = h,
                    .k = d.k.data() + key * width,
                    .v = d.v.data() + key * width,
                    .kv_stride = k,
                    .out = out.data() + column,
                    .out_stride = h,
                    .log_sum_exp = sums.data() + first * d.length};
    call.out_gradient = d.out_gradient.data() + column;
    call.out_gradient_stride = call.gradient_stride = h;
    call.dq = dq.data() + column;
    call.dk = dk.data() + key * width;
    call.dv = dv.data() + key * width;
    call.delta = delta.data() + first * d.length;
    call.dq_sum = dq_sum.data() + first * d.length * width;
    call.group = group;
    kernel::attention_backward(call);
  }
  Results<T> results{{out.begin(), out.end()}, {dq.begin(), dq.end()}, {}, {}};
  for (int64_t row = 0; row < d.length; ++row)
    for (int64_t c = 0; c < k; ++c) {
      results.dk.push_back(dk[row * h + c]);
      results.dv.push_back(dv[row * h + c]);
    }
  return results;
}

/// Keys and values of one member, and the sums of their gradients.
template <class T>
struct KeyBlock {
  std::vector<Span> spans;
  std::vector<T> k, v;
  std::vector<Wide<T>> dk, dv;
};

template <class T>
struct Member {
  std::vector<Span> spans;
  std::vector<T> q, out_gradient;
  std::vector<Wide<T>> out, sums, delta, dq;
};

/// Members of a ring in one process; what moves is counted.
template <class T>
class Ring {
 public:
  Ring(const Document<T>& document, int64_t ring)
      : d_(document),
        cut_{document.length, ring},
        h_(d_.heads.query_columns()),
        k_(d_.heads.key_columns()) {
    for (int64_t member = 0; member < ring; ++member) {
      const std::vector<Span> spans = cut_.spans(member);
      const size_t rows = static_cast<size_t>(cut_.tokens(member));
      blocks_.push_back({spans, pick(d_.k, k_, spans), pick(d_.v, k_, spans), {}, {}});
      members_.push_back(
          {spans, pick(d_.q, h_, spans), pick(d_.out_gradient, h_, spans),
           std::vector<Wide<T>>(rows * h_), std::vector<Wide<T>>(rows * d_.heads.queries),
           std::vector<Wide<T>>(rows * d_.heads.queries), std::vector<Wide<T>>(rows * h_)});
    }
  }

  Results<T> run() {
    for (Member<T>& member : members_)
      begin_attention(call_of(member, blocks_[0]), member.out.data(), h_);
    for (int64_t round = 0; round < cut_.ring; ++round)
      for (int64_t at = 0; at < cut_.ring; ++at) {
        Member<T>& member = members_[at];
        const KeyBlock<T>& keys = blocks_[owner(at, round)];
        if (round > 0) moved_.forward += bytes_of(keys.k) + bytes_of(keys.v);
        pairs_ += attend(call_of(member, keys), member.out.data(), h_);
      }
    for (Member<T>& member : members_) find_delta(member);
    return backward();
  }

  int64_t pairs() const { return pairs_; }
  Traffic moved() const { return moved_; }

 private:
  int64_t owner(int64_t member, int64_t round) const {
    return (member - round + cut_.ring) % cut_.ring;
  }
  template <class E>
  static int64_t bytes_of(const std::vector<E>& values) {
    return static_cast<int64_t>(values.size() * sizeof(E));
  }

  AttendCall<T> call_of(Member<T>& member, const KeyBlock<T>& keys) const {
    return {.query_spans = member.spans,
            .key_spans = keys.spans,
            .heads = d_.heads,
            .q = member.q.data(),
            .q_stride = h_,
            .k = keys.k.data(),
            .v = keys.v.data(),
            .kv_stride = k_,
            .log_sum_exp = member.sums.data()};
  }

  void find_delta(Member<T>& member) const {
    const int64_t rows = static_cast<int64_t>(member.q.size()) / h_, width = d_.heads.width;
    const std::vector<T> out(member.out.begin(), member.out.end());
    for (int64_t head = 0; head < d_.heads.queries; ++head)
      kernel::attention_delta<T>({rows, width, out.data() + head * width, h_,
                                  member.out_gradient.data() + head * width, h_,
                                  member.delta.data() + head * rows});
  }

  /// Sums of gradients start at the first rank that is visited and come home in the last hop.
  Results<T> backward() {
    std::vector<KeyBlock<T>> home = blocks_;
    for (auto* blocks : {&blocks_, &home})
      for (KeyBlock<T>& block : *blocks) block.dk.assign(block.k.size(), 0), block.dv = block.dk;
    for (int64_t round = 0; round < cut_.ring; ++round)
      for (int64_t at = 0; at < cut_.ring; ++at) {
        KeyBlock<T>& keys = round == 0 ? home[at] : blocks_[owner(at, round)];
        if (round > 0)
          moved_.backward +=
              bytes_of(keys.k) + bytes_of(keys.v) + bytes_of(keys.dk) + bytes_of(keys.dv);
        Member<T>& member = members_[at];
        attend_backward<T>({call_of(member, keys), member.out_gradient.data(), h_,
                            member.delta.data(), member.dq.data(), h_, keys.dk.data(),
                            keys.dv.data(), k_});
      }
    Results<T> r{std::vector<Wide<T>>(d_.q.size()), std::vector<Wide<T>>(d_.q.size()),
                 std::vector<Wide<T>>(d_.k.size()), std::vector<Wide<T>>(d_.k.size())};
    for (size_t at = 0; at < members_.size(); ++at) {
      for (size_t i = 0; i < home[at].dk.size(); ++i) {
        home[at].dk[i] += blocks_[at].dk[i];
        home[at].dv[i] += blocks_[at].dv[i];
      }
      put(members_[at].out, h_, members_[at].spans, r.out);
      put(members_[at].dq, h_, members_[at].spans, r.dq);
      put(home[at].dk, k_, members_[at].spans, r.dk);
      put(home[at].dv, k_, members_[at].spans, r.dv);
    }
    return r;
  }

  const Document<T>& d_;
  Cut cut_;
  int64_t h_, k_, pairs_ = 0;
  Traffic moved_;
  std::vector<KeyBlock<T>> blocks_;
  std::vector<Member<T>> members_;
};

template <class W>
double error_of(const std::vector<W>& got, const std::vector<W>& want) {
  double norm = 0, error = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    norm += static_cast<double>(want[i]) * static_cast<double>(want[i]);
    error += std::pow(static_cast<double>(got[i]) - static_cast<double>(want[i]), 2);
  }
  return std::sqrt(error) / (std::sqrt(norm) + 1e-300);
}

template <class T>
void expect_equal(const Results<T>& got, const Results<T>& want, double limit) {
  EXPECT_LE(error_of(got.out, want.out), limit);
  EXPECT_LE(error_of(got.dq, want.dq), want.dq.size() > 16 ? limit : 1.0);
  EXPECT_LE(error_of(got.dk, want.dk), want.dk.size() > 16 ? limit : 1.0);
  EXPECT_LE(error_of(got.dv, want.dv), limit);
}

std::vector<Heads> kinds_of_heads() { return {{2, 2, 8}, {4, 2, 5}, {3, 1, 4}}; }

/// Z2, Z3, Z5.
TEST(AttendTest, ARingEqualsOneRankWithTheBytesOfTheFormulas) {
  for (const int64_t ring : {1, 2, 3, 4, 8})
    for (const int64_t length : {2 * ring - 1, 2 * ring, int64_t{101}, int64_t{150}})
      for (const Heads& heads : kinds_of_heads()) {
        SCOPED_TRACE(testing::Message() << length << " tokens on " << ring);
        const Document<double> d = document_of<double>(length, heads);
        Ring<double> wide(d, ring);
        expect_equal(wide.run(), whole(d), 1e-12);
        EXPECT_EQ(wide.pairs(), causal_pairs(length));
        EXPECT_EQ(wide.moved(), (Traffic{(ring - 1) * length * 2 * heads.key_columns() * 8,
                                         (ring - 1) * length * 2 * heads.key_columns() * 16}));
        const Document<float> single = document_of<float>(length, heads);
        expect_equal(Ring<float>(single, ring).run(), whole(single), 1e-5);
      }
}

TEST(AttendTest, OneTokenAttendsItself) {
  const Document<double> d = document_of<double>(1, {2, 1, 4});
  const Results<double> got = Ring<double>(d, 4).run();
  for (size_t i = 0; i < got.out.size(); ++i) EXPECT_EQ(got.out[i], d.v[i % 4]);
}

/// Z4: run to run a ring has the same bits.
TEST(AttendTest, ARingRepeatsItsBits) {
  const Document<float> d = document_of<float>(101, {4, 2, 5});
  const Results<float> first = Ring<float>(d, 4).run(), second = Ring<float>(d, 4).run();
  EXPECT_EQ(first.out, second.out);
  EXPECT_EQ(first.dk, second.dk);
}

/// Z4: gathered keys and exchanged heads give the bits of one rank.
template <class T>
void check_bits(int64_t length, int64_t ranks) {
  const Heads heads{4, 2, 8};
  const Document<T> d = document_of<T>(length, heads);
  const Results<T> want = whole(d);
  const Cut cut{length, ranks};
  const std::vector<Span> all = {{0, length}};
  std::vector<Wide<T>> gathered(d.q.size()), exchanged(d.q.size());
  for (int64_t member = 0; member < ranks; ++member) {
    const std::vector<Span> spans = cut.spans(member);
    const std::vector<T> q = pick(d.q, heads.query_columns(), spans);
    std::vector<Wide<T>> out(q.size()), sums(cut.tokens(member) * heads.queries);
    const AttendCall<T> call{.query_spans = spans,
                             .key_spans = all,
                             .heads = heads,
                             .q = q.data(),
                             .q_stride = heads.query_columns(),
                             .k = d.k.data(),
                             .v = d.v.data(),
                             .kv_stride = heads.key_columns(),
                             .log_sum_exp = sums.data()};
    begin_attention(call, out.data(), heads.query_columns());
    attend(call, out.data(), heads.query_columns());
    put(out, heads.query_columns(), spans, gathered);
  }
  for (int64_t rank = 0; rank < 2; ++rank) {  // two query heads and one key head each
    std::vector<Wide<T>> sums(2 * length);
    const AttendCall<T> call{.query_spans = all,
                             .key_spans = all,
                             .heads = {2, 1, 8},
                             .q = d.q.data() + rank * 16,
                             .q_stride = heads.query_columns(),
                             .k = d.k.data() + rank * 8,
                             .v = d.v.data() + rank * 8,
                             .kv_stride = heads.key_columns(),
                             .log_sum_exp = sums.data()};
    begin_attention(call, exchanged.data() + rank * 16, heads.query_columns());
    attend(call, exchanged.data() + rank * 16, heads.query_columns());
  }
  for (size_t i = 0; i < want.out.size(); ++i) {
    ASSERT_EQ(static_cast<Wide<T>>(T(gathered[i])), want.out[i]) << i;
    ASSERT_EQ(static_cast<Wide<T>>(T(exchanged[i])), want.out[i]) << i;
  }
}

TEST(AttendTest, GatheredKeysAndExchangedHeadsHaveTheBitsOfOneRank) {
  for (const int64_t length : {1, 7, 64, 150, 211})
    for (const int64_t ranks : {1, 2, 3, 8}) {
      check_bits<double>(length, ranks);
      check_bits<float>(length, ranks);
      check_bits<Bfloat16>(length, ranks);
    }
}

/// Backward with the keys of another round: right forward, wrong gradients, which this test sees.
TEST(AttendTest, ABlockThatIsMissedOrTakenTwiceIsSeen) {
  const Document<double> d = document_of<double>(64, {2, 2, 8});
  const std::vector<Span> all = {{0, 64}}, half = {{0, 32}};
  for (const bool twice : {false, true}) {
    std::vector<double> out(d.q.size()), sums(2 * 64);
    AttendCall<double> call{.query_spans = all,
                            .key_spans = all,
                            .heads = d.heads,
                            .q = d.q.data(),
                            .q_stride = 16,
                            .k = d.k.data(),
                            .v = d.v.data(),
                            .kv_stride = 16,
                            .log_sum_exp = sums.data()};
    begin_attention(call, out.data(), 16);
    int64_t pairs = twice ? attend(call, out.data(), 16) : 0;
    call.key_spans = half;
    pairs += attend(call, out.data(), 16);
    EXPECT_NE(pairs, causal_pairs(64));
    EXPECT_GT(error_of(out, whole(d).out), 1e-3);
  }
}

}  // namespace
}  // namespace strait::sequence
