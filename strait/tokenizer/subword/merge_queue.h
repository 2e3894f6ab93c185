// Byte-pair merges of a long run of tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <queue>
#include <vector>

namespace strait::subword {

/// Joins, again and again, the pair whose merge has the lowest rank, the leftmost of several, until
/// no pair has one. `rank(left, right)` is >= 0, or -1 where the two do not join; `result(rank)` is
/// the token that they become. Cost: O(n log n).
template <class Rank, class Result>
void merge_all(std::vector<int32_t>& tokens, const Rank& rank, const Result& result) {
  constexpr int32_t kNone = -1;
  struct Node {
    int32_t token;
    int64_t previous, next;
  };
  struct Candidate {
    int32_t rank;
    int64_t left;
    bool operator<(const Candidate& other) const {  // the queue's top is the largest
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };
  const auto size = static_cast<int64_t>(tokens.size());
  std::vector<Node> nodes;
  nodes.reserve(tokens.size());
  for (int64_t i = 0; i < size; ++i)
    nodes.push_back({tokens[static_cast<size_t>(i)], i - 1, i + 1});
  const auto pair_rank = [&](int64_t left) {
    const bool pair = left >= 0 && nodes[left].token != kNone && nodes[left].next < size;
    return pair ? rank(nodes[left].token, nodes[nodes[left].next].token) : kNone;
  };
  std::priority_queue<Candidate> queue;
  const auto offer = [&](int64_t left) {
    if (const int32_t r = pair_rank(left); r != kNone) queue.push({r, left});
  };
  for (int64_t i = 0; i < size; ++i) offer(i);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    if (pair_rank(top.left) != top.rank) continue;  // one of the two has been merged since
    Node& node = nodes[top.left];
    const int64_t gone = node.next;
    node.token = result(top.rank);
    node.next = nodes[gone].next;
    nodes[gone].token = kNone;
    if (node.next < size) nodes[node.next].previous = top.left;
    offer(top.left);
    offer(node.previous);
  }
  tokens.clear();
  for (int64_t i = 0; i < size; i = nodes[i].next) tokens.push_back(nodes[i].token);
}

}  // namespace strait::subword
