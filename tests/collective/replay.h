// The plain reference: replays the transfers of a schedule on vectors, one step after another.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "strait/collective/schedule.h"

namespace strait::collective {

/// Buffers of one member. Elements nobody wrote stay at kUnwritten.
struct Buffers {
  std::vector<double> source, destination, scratch;
};
inline constexpr double kUnwritten = -1e300;

/// Reads of a step see what was written in earlier steps and, inside one member, before them in the
/// list; a sum reads everything before it writes. Throws when a transfer leaves its buffers or
/// reads what nobody wrote.
inline void replay(const Schedule& schedule, std::vector<Buffers>& members) {
  const auto buffer = [&](int64_t member, Place place) -> std::vector<double>& {
    Buffers& own = members.at(member);
    return place == Place::kSource    ? own.source
           : place == Place::kScratch ? own.scratch
                                      : own.destination;
  };
  for (int64_t step = 0; step < schedule.steps; ++step) {
    const std::vector<Buffers> before = members;  // what other members can see
    for (size_t begin = 0, end = 0; begin < schedule.transfers.size(); begin = end) {
      for (end = begin + 1; end < schedule.transfers.size() && schedule.transfers[end].add; ++end) {
      }
      const Transfer& first = schedule.transfers[begin];
      if (first.step != step) continue;
      std::vector<double> sum(first.elements);
      for (size_t at = begin; at < end; ++at) {
        const Transfer& transfer = schedule.transfers[at];
        const Buffers& from =
            transfer.from == transfer.to ? members.at(transfer.from) : before.at(transfer.from);
        const auto& source = transfer.source == Place::kSource    ? from.source
                             : transfer.source == Place::kScratch ? from.scratch
                                                                  : from.destination;
        for (int64_t i = 0; i < first.elements; ++i) {
          const double value = source.at(transfer.source_offset + i);
          if (value == kUnwritten) throw std::logic_error("a transfer reads what nobody wrote");
          sum[i] = transfer.add ? sum[i] + value : value;
        }
      }
      std::vector<double>& target = buffer(first.to, first.destination);
      for (int64_t i = 0; i < first.elements; ++i) target.at(first.destination_offset + i) = sum[i];
    }
  }
}

}  // namespace strait::collective
