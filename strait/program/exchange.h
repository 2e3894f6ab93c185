// All transfers of all rank classes, in the order in which each class issues them: what the checks
// across ranks compare and simulate.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "strait/program/classes.h"
#include "strait/program/program.h"

namespace strait::program {

/// Groups of one shape on one stream. Each of its instances has one communicator, whose operations
/// start in the same order on all its ranks.
struct Channel {
  std::string name;  // "group world, world.0"
  Group group;
  int stream = 0;
};

/// One executed communication op of a class.
struct Transfer {
  const Op* op = nullptr;
  int channel = 0;
  int64_t peer = 0;      // send, receive, broadcast
  int64_t instance = 0;  // its number among all executed ops of the class
};

class Exchange {
 public:
  /// `classes` must have passed check_structure and check_classes, and must outlive this object.
  explicit Exchange(std::span<const Program> classes);

  const std::vector<Channel>& channels() const { return channels_; }
  const std::vector<Transfer>& transfers(int64_t rank_class) const {
    return transfers_[rank_class];
  }
  int64_t class_of(int64_t rank) const { return class_of_[rank]; }
  int64_t ranks() const { return static_cast<int64_t>(class_of_.size()); }

  /// Numbers of the transfers of a class on a channel, in order: collectives (barriers included),
  /// and messages by position of the peer.
  const std::vector<int64_t>& collectives(int64_t rank_class, int channel) const;
  const std::map<int64_t, std::vector<int64_t>>& sends(int64_t rank_class, int channel) const;
  const std::map<int64_t, std::vector<int64_t>>& receives(int64_t rank_class, int channel) const;
  /// True when a class runs anything on the channel.
  bool uses(int64_t rank_class, int channel) const {
    const Traffic& used = traffic(rank_class, channel);
    return !used.collectives.empty() || !used.sends.empty() || !used.receives.empty();
  }
  /// True when some class sends or receives on the channel.
  bool has_messages(int channel) const { return has_messages_[channel]; }

 private:
  struct Traffic {
    std::vector<int64_t> collectives;
    std::map<int64_t, std::vector<int64_t>> sends, receives;
  };
  int channel_of(const Program& program, const Op& op);
  void add(int64_t rank_class, const Transfer& transfer);
  const Traffic& traffic(int64_t rank_class, int channel) const;

  std::vector<Channel> channels_;
  std::vector<std::vector<Transfer>> transfers_;  // [class]
  std::vector<std::vector<Traffic>> traffic_;     // [class][channel]
  std::vector<int64_t> class_of_;                 // [rank]
  std::vector<bool> has_messages_;                // [channel]
};

}  // namespace strait::program
