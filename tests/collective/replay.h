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
/// list. Throws when a transfer leaves its buffers or reads what nobody wrote.
inline void replay(const Schedule& schedule, std::vector<Buffers>& members) {
  const auto buffer = [&](int64_t member, Place place) -> std::vector<double>& {
    Buffers& own = members.at(member);
    return place == Place::kSource    ? own.source
           : place == Place::kScratch ? own.scratch
                                      : own.destination;
  };
  for (int64_t step = 0; step < schedule.steps; ++step) {
    const std::vector<Buffers> before = members;  // what other members can see
    for (const Transfer& transfer : schedule.transfers) {
      if (transfer.step != step) continue;
      for (int64_t i = 0; i < transfer.elements; ++i) {
        const Buffers& from =
            transfer.from == transfer.to ? members.at(transfer.from) : before.at(transfer.from);
        const auto& source = transfer.source == Place::kSource    ? from.source
                             : transfer.source == Place::kScratch ? from.scratch
                                                                  : from.destination;
        const double value = source.at(transfer.source_offset + i);
        if (value == kUnwritten) throw std::logic_error("a transfer reads what nobody wrote");
        double& target =
            buffer(transfer.to, transfer.destination).at(transfer.destination_offset + i);
        target = transfer.add ? target + value : value;
      }
    }
  }
}

}  // namespace strait::collective
