#include "strait/program/exchange.h"

#include <fmt/format.h>

#include <unordered_map>

namespace strait::program {

Exchange::Exchange(std::span<const Program> classes)
    : transfers_(classes.size()), traffic_(classes.size()), class_of_(classes[0].ranks, 0) {
  for (size_t c = 0; c < classes.size(); ++c) {
    for (const int64_t rank : class_ranks(classes[c])) class_of_[rank] = static_cast<int64_t>(c);
    std::unordered_map<const Op*, int> channel_by_op;
    int64_t instance = 0;
    for_each_instance(classes[c], [&](const Op& op, const std::vector<int64_t>& loops) {
      const int64_t number = instance++;
      if (!is_communication(op.kind)) return;
      const auto [found, fresh] = channel_by_op.try_emplace(&op, 0);
      if (fresh) found->second = channel_of(classes[c], op);
      add(static_cast<int64_t>(c), {&op, found->second, evaluate(op.peer, loops), number});
    });
  }
  for (auto& by_channel : traffic_) by_channel.resize(channels_.size());
}

int Exchange::channel_of(const Program& program, const Op& op) {
  const Group& group = program.groups[op.group];
  for (size_t k = 0; k < channels_.size(); ++k) {
    const Channel& channel = channels_[k];
    if (channel.stream == op.stream && same_members(channel.group, group, ranks()))
      return static_cast<int>(k);
  }
  const Stream& stream = program.streams[op.stream];
  channels_.push_back(
      {fmt::format("group {}, {}.{}", group.name, stream.resource, stream.lane), group, op.stream});
  has_messages_.push_back(false);
  return static_cast<int>(channels_.size()) - 1;
}

void Exchange::add(int64_t rank_class, const Transfer& transfer) {
  const int64_t number = static_cast<int64_t>(transfers_[rank_class].size());
  transfers_[rank_class].push_back(transfer);
  std::vector<Traffic>& by_channel = traffic_[rank_class];
  if (by_channel.size() < channels_.size()) by_channel.resize(channels_.size());
  Traffic& traffic = by_channel[transfer.channel];
  if (transfer.op->kind == OpKind::kSend) {
    traffic.sends[transfer.peer].push_back(number);
  } else if (transfer.op->kind == OpKind::kReceive) {
    traffic.receives[transfer.peer].push_back(number);
  } else {
    traffic.collectives.push_back(number);
  }
  if (is_message(transfer.op->kind)) has_messages_[transfer.channel] = true;
}

const Exchange::Traffic& Exchange::traffic(int64_t rank_class, int channel) const {
  return traffic_[rank_class][channel];
}

const std::vector<int64_t>& Exchange::collectives(int64_t rank_class, int channel) const {
  return traffic(rank_class, channel).collectives;
}

const std::map<int64_t, std::vector<int64_t>>& Exchange::sends(int64_t rank_class,
                                                               int channel) const {
  return traffic(rank_class, channel).sends;
}

const std::map<int64_t, std::vector<int64_t>>& Exchange::receives(int64_t rank_class,
                                                                  int channel) const {
  return traffic(rank_class, channel).receives;
}

}  // namespace strait::program
