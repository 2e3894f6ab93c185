#include "strait/train/process_watch.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "strait/base/clock.h"

namespace strait::train {

ProcessWatch::ProcessWatch(comm::World& world, Actions actions)
    : world_(world), actions_(std::move(actions)), worker_([this] { work(); }) {}

ProcessWatch::~ProcessWatch() {
  stopping_.store(true);
  worker_.join();
}

comm::Failure ProcessWatch::did_not_come_back() const {
  const trace::Standing standing = world_.waits()->standing();
  comm::Failure failure;
  failure.kind = comm::Failure::Kind::kPeerLost;
  failure.message = fmt::format("rank {} did not come back from \"{}\" after the run had failed",
                                world_.rank(), standing.place.operation);
  failure.place.rank = world_.rank();
  if (!standing.place.operation.empty()) failure.place.operation = standing.place.operation;
  if (standing.place.step >= 0) failure.place.step = standing.place.step;
  return failure;
}

void ProcessWatch::work() {
  constexpr std::chrono::milliseconds kTurn(50);
  std::optional<comm::Failure> cause;
  double failed_at = 0;
  for (; !stopping_.load(); std::this_thread::sleep_for(kTurn)) {
    if (!cause && (cause = actions_.overdue())) world_.abort(cause->message, cause->place);
    const comm::WaitRow* row = world_.waits();
    if (failed_at == 0 && row != nullptr && row->frozen()) failed_at = now_seconds();
    if (failed_at == 0 || now_seconds() < failed_at + actions_.grace_seconds) continue;
    try {
      comm::raise(cause ? *cause : did_not_come_back());
    } catch (...) {
      actions_.stuck(std::current_exception());
    }
    return;
  }
}

}  // namespace strait::train
