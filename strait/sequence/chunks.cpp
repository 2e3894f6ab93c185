#include "strait/sequence/chunks.h"

#include <algorithm>

#include "strait/base/errors.h"

namespace strait::sequence {
namespace {

/// Sum of max(0, q + 1 - shift) over q in [0, end).
int64_t triangle(int64_t end, int64_t shift) {
  return causal_pairs(std::max<int64_t>(0, end - shift));
}

}  // namespace

int64_t ring_parts(int64_t chunk) {
  constexpr int64_t kMostParts = 8, kLeastRows = 128;
  int64_t parts = 1;
  while (parts < kMostParts && chunk % (2 * parts) == 0 && chunk / (2 * parts) >= kLeastRows)
    parts *= 2;
  return parts;
}

int64_t causal_pairs(int64_t length) { return length * (length + 1) / 2; }

Span Cut::part(int64_t number, int64_t parts) const {
  return {number * length / parts, (number + 1) * length / parts};
}

std::vector<Span> Cut::spans(int64_t member) const {
  const int64_t parts = order == Order::kZigZag ? 2 * ring : ring;
  std::vector<Span> found;
  const auto add = [&](int64_t number) {
    const Span span = part(number, parts);
    if (span.size() == 0) return;
    if (!found.empty() && found.back().end == span.begin) {
      found.back().end = span.end;
    } else {
      found.push_back(span);
    }
  };
  add(member);
  if (order == Order::kZigZag) add(parts - 1 - member);
  return found;
}

std::array<Span, 2> Cut::chunks(int64_t member) const {
  return {part(member, 2 * ring), part(2 * ring - 1 - member, 2 * ring)};
}

int64_t Cut::tokens(int64_t member) const {
  if (order == Order::kContiguous) return part(member, ring).size();
  const auto [first, second] = chunks(member);
  return first.size() + second.size();
}

int64_t Cut::pairs(int64_t member) const {
  const auto pairs = [](const Span& span) {
    return causal_pairs(span.end) - causal_pairs(span.begin);
  };
  if (order == Order::kContiguous) return pairs(part(member, ring));
  const auto [first, second] = chunks(member);
  return pairs(first) + pairs(second);
}

int64_t Block::pairs() const {
  // Query q attends clamp(q + 1 - keys.begin, 0, keys.size()) of them.
  const auto below = [&](int64_t end) {
    return triangle(end, keys.begin) - triangle(end, keys.end);
  };
  return below(queries.end) - below(queries.begin);
}

std::vector<Block> round_blocks(const Cut& cut, int64_t member, int64_t round) {
  std::vector<Block> blocks;
  const int64_t owner = (member - round % cut.ring + cut.ring) % cut.ring;
  for (const Span& queries : cut.spans(member))
    for (const Span& keys : cut.spans(owner))
      if (const Block block{queries, keys}; block.pairs() > 0) blocks.push_back(block);
  return blocks;
}

std::vector<Block> own_blocks(const Cut& cut, int64_t member, OwnPairs half) {
  ensure(cut.order == Order::kZigZag && half != OwnPairs::kAll, "own_blocks: chunks, and a half");
  const auto [first, second] = cut.chunks(member);
  std::vector<Block> blocks;
  if (half == OwnPairs::kAcross)
    blocks = {{second, first}};
  else
    blocks = {{first, first}, {second, second}};
  std::erase_if(blocks, [](const Block& block) { return block.pairs() == 0; });
  return blocks;
}

double ring_seconds(const Cut& cut, double pair_seconds, double token_seconds) {
  const size_t ring = static_cast<size_t>(cut.ring);
  std::vector<double> computed(ring, 0), arrived(ring, 0);  // of each member's last round, its keys
  for (int64_t round = 0; round < cut.ring; ++round) {
    std::vector<double> next(ring);
    for (int64_t member = 0; member < cut.ring; ++member) {
      const size_t at = static_cast<size_t>(member);
      int64_t pairs = 0;
      for (const Block& block : round_blocks(cut, member, round)) pairs += block.pairs();
      const int64_t owner = (member - round + cut.ring) % cut.ring;
      next[(at + 1) % ring] = arrived[at] + token_seconds * static_cast<double>(cut.tokens(owner));
      computed[at] =
          std::max(computed[at], arrived[at]) + pair_seconds * static_cast<double>(pairs);
    }
    arrived = next;
  }
  return *std::max_element(computed.begin(), computed.end());
}

}  // namespace strait::sequence
