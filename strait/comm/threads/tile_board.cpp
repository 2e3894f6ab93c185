#include "strait/comm/threads/tile_board.h"

#include <fmt/format.h>

#include "strait/base/errors.h"

namespace strait::comm {

TileBoard::TileBoard(int64_t ranks, int64_t tiles, double spin_seconds)
    : ranks_(ranks),
      tiles_(tiles),
      published_(std::make_unique<Flag[]>(static_cast<size_t>(ranks * tiles))),
      finished_(std::make_unique<Flag[]>(static_cast<size_t>(ranks))),
      signal_(spin_seconds) {}

void TileBoard::set(Flag& flag, uint32_t epoch) {
  flag.epoch.store(epoch, std::memory_order_release);
  signal_.notify();
}

void TileBoard::wait(const Flag& flag, uint32_t epoch, double deadline_seconds, int64_t owner,
                     const std::string& what) {
  if (flag.holds(epoch)) return;
  const SteadyTime deadline = deadline_after(deadline_seconds);
  if (signal_.wait([&] { return flag.holds(epoch); }, deadline)) return;
  ErrorPlace place;
  place.rank = owner;
  throw Timeout(fmt::format("rank {} {} {} within {} s; it stands at epoch {}", owner, what, epoch,
                            deadline_seconds, flag.epoch.load()),
                std::move(place));
}

void TileBoard::publish(int64_t rank, int64_t tile, uint32_t epoch) {
  set(published_[static_cast<size_t>(rank * tiles_ + tile)], epoch);
}

void TileBoard::await(int64_t owner, int64_t tile, uint32_t epoch, double deadline_seconds) {
  const Flag& flag = published_[static_cast<size_t>(owner * tiles_ + tile)];
  if (flag.holds(epoch)) return;
  wait(flag, epoch, deadline_seconds, owner,
       fmt::format("has not published tile {} of epoch", tile));
}

void TileBoard::finish(int64_t rank, uint32_t epoch) {
  set(finished_[static_cast<size_t>(rank)], epoch);
}

void TileBoard::await_readers(int64_t rank, uint32_t epoch, double deadline_seconds) {
  for (int64_t other = 0; other < ranks_; ++other)
    if (other != rank)
      wait(finished_[static_cast<size_t>(other)], epoch, deadline_seconds, other,
           "has not finished reading epoch");
}

}  // namespace strait::comm
