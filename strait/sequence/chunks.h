// How the tokens of one document lie on the ranks of a ring, and which pairs of queries and keys a
// rank computes in which round. Zig-zag: cut at c_j = floor(j s / 2g), member i holds chunks i and
// 2g - 1 - i, so that causal work is even without padding. Tokens differ by at most 2, pairs by at
// most s (zig-zag context parallelism of Llama 3 and of ring-flash-attention).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace strait::sequence {

/// Positions [begin, end) of one document.
struct Span {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Span&) const = default;
};

enum class Order : uint8_t {
  kZigZag,
  kContiguous  // member i holds the i-th of g runs: the unbalanced form, to compare with
};

/// A document of `length` tokens on a ring of `ring` members. Chunks may be empty.
struct Cut {
  int64_t length = 0, ring = 1;
  Order order = Order::kZigZag;

  /// The non-empty runs of positions of a member, ascending: at most two.
  std::vector<Span> spans(int64_t member) const;
  /// Its two chunks apart, ascending; either may be empty. Zig-zag only.
  std::array<Span, 2> chunks(int64_t member) const;
  int64_t tokens(int64_t member) const;
  /// Causal pairs of the queries that a member holds.
  int64_t pairs(int64_t member) const;

 private:
  Span part(int64_t number, int64_t parts) const;
};

/// What a member of a ring holds of sequences that have 2 `members` equal chunks: its `tokens` rows
/// are those of chunk `member`, then those of its mirror image. One member holds everything.
struct Share {
  int64_t members = 1, member = 0, tokens = 0;

  int64_t length() const { return members * tokens; }
  int64_t chunk() const { return tokens / 2; }
  /// Where the first row of its first or second (`half` 0, 1) chunk stands.
  int64_t begin(int64_t half) const {
    return (half == 0 ? member : 2 * members - 1 - member) * chunk();
  }
  /// Where a row stands in its sequence.
  int64_t position(int64_t row) const {
    return row < chunk() ? begin(0) + row : begin(1) + row - chunk();
  }
};

/// The same rows of each of a member's chunks: what the backward of a ring passes around at a time.
struct KeyPart {
  int64_t number = 0, parts = 1;  // which divide a chunk
  int64_t rows(int64_t chunk) const { return chunk / parts; }
  /// Where one of these rows stands among all of the member's.
  int64_t own_row(int64_t row, int64_t chunk) const {
    return row / rows(chunk) * chunk + number * rows(chunk) + row % rows(chunk);
  }
};
/// Into how many parts: a power of two up to 8 of which each has 128 rows of a chunk or more, 1
/// where there are no such. Sums of gradients under way take as little memory as a part has rows.
int64_t ring_parts(int64_t chunk);

/// s(s + 1) / 2.
int64_t causal_pairs(int64_t length);

/// Queries against keys, of which a query attends those not behind it.
struct Block {
  Span queries, keys;
  int64_t pairs() const;
};

/// What `member` computes in `round` of the ring, when it has the keys of member (member - round)
/// mod g. Blocks without pairs are left out. Rounds run from 0 to g - 1.
std::vector<Block> round_blocks(const Cut& cut, int64_t member, int64_t round);

/// Of the pairs in round 0, whose keys are the member's own: all, or about half of them: those of
/// its second chunk with its first, or those of each chunk with itself. A backward does the one
/// half while the first keys of others come, the other one while the last sums of gradients come
/// home.
enum class OwnPairs : uint8_t { kAll, kAcross, kWithin };

/// One half of what `member` computes in round 0, chunk by chunk, without empty ones.
std::vector<Block> own_blocks(const Cut& cut, int64_t member, OwnPairs half);

/// Seconds until the last member has done its last round, with `pair_seconds` per pair and
/// `token_seconds` per token that moves to the right neighbour. A member sends keys on as soon as
/// it has them; they travel while it computes.
double ring_seconds(const Cut& cut, double pair_seconds, double token_seconds);

}  // namespace strait::sequence
