#include "strait/sim/simulate.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "strait/base/errors.h"
#include "strait/collective/choose.h"
#include "strait/collective/of_op.h"
#include "strait/collective/schedule.h"
#include "strait/cost/cost.h"
#include "strait/program/lifetime.h"
#include "strait/program/transfer.h"
#include "strait/sim/lanes.h"

namespace strait::sim {

using program::Op;
using program::OpKind;
using program::Program;

namespace {

/// Send and receive are the two sides of one schedule.
collective::Operation operation_of(OpKind kind) {
  return kind == OpKind::kReceive ? collective::Operation::kSend : collective::operation_of(kind);
}

/// The schedule of `op` among `ranks`, one group of the program.
collective::Schedule schedule_of(const Program& program, const Op& op, const Cluster& cluster,
                                 const std::vector<int64_t>& ranks) {
  const program::Group& group = program.groups[op.group];
  const int64_t base = ranks.front();
  collective::Request request;
  request.operation = operation_of(op.kind);
  request.members = group.size;
  if (op.kind == OpKind::kBarrier) return collective::make_schedule(request);
  const program::Split split = program::transfer_split(program, op, base);
  if (op.kind == OpKind::kBroadcast) {
    request.counts = {split.elements()};
    request.root = op.peer.constant;
  } else if (op.kind == OpKind::kAllToAll) {
    for (int64_t sender = 0; sender < group.size; ++sender)
      for (int64_t part = 0; part < group.size; ++part) request.counts.push_back(split.count(part));
  } else {
    for (int64_t part = 0; part < group.size; ++part) request.counts.push_back(split.count(part));
  }
  const int64_t bytes = split.elements() * dtype_bytes(program::transfer_array(program, op).dtype);
  collective::choose_form(request, bytes, cluster, ranks);
  return collective::make_schedule(request);
}

/// What each level takes of the processors that also compute.
std::vector<double> processor_shares(const Cluster& cluster) {
  std::vector<double> shares;
  for (const Level& level : cluster.levels) shares.push_back(level.processor_share);
  return shares;
}

class Replay {
 public:
  Replay(const Program& program, const Cluster& cluster, trace::Recorder* recorder)
      : program_(program),
        cluster_(cluster),
        recorder_(recorder),
        tracker_(program),
        lanes_(static_cast<int64_t>(program.streams.size()), processor_shares(cluster)),
        rank_(program.members.empty() ? 0 : program.members.front()) {}

  Result run() {
    const bool carries = std::any_of(program_.arrays.begin(), program_.arrays.end(),
                                     [](const program::ValueArray& array) {
                                       return array.lifetime == program::Lifetime::kCarry;
                                     });
    const auto start_over = [&] {
      result_ = {};
      result_.level_bytes.assign(cluster_.levels.size(), 0);
    };
    start_over();
    if (carries) replay();
    start_over();
    began_ = lanes_.now();
    counting_ = true;
    replay();
    result_.seconds = lanes_.now() - began_;
    for (const auto& [op, number] : flights_) {
      const Flight& flight = lanes_.flight(number);
      if (flight.landed >= 0)
        recorder_->add(recorder_->name(program::print_op(program_, *op)), op->stream,
                       {flight.started - began_, flight.landed - began_}, 0);
    }
    return std::move(result_);
  }

 private:
  /// One execution behind what the one before has left under way.
  void replay() {
    first_ = lanes_.issued();
    std::vector<int64_t> carried;
    for (const auto& [slot, number] : carries_) carried.push_back(slot);
    tracker_.begin(carried);
    program::for_each_instance(
        program_, [&](const Op& op, const std::vector<int64_t>& loops) { step(op, loops); });
    const program::FinishPlan& finish = tracker_.finish();
    for (const int64_t number : finish.wait_for) wait(first_ + number);
    carries_.clear();
    for (const auto& [slot, number] : finish.outstanding) carries_[slot] = first_ + number;
  }

  void wait(int64_t number) {
    const double before = lanes_.now();
    lanes_.advance_until(number);
    result_.exposed_seconds += lanes_.now() - before;
  }

  void step(const Op& op, const std::vector<int64_t>& loops) {
    const program::StepPlan& plan = tracker_.next(op, loops);
    for (const int64_t number : plan.wait_for) wait(first_ + number);
    const bool inlined = plan.communication < 0;
    for (const int64_t slot : plan.carries)
      if (inlined) wait(carries_.at(slot));
    if (op.kind == OpKind::kFree) return;
    ++result_.events;
    if (!inlined) {
      start(op, plan);
      return;
    }
    const double seconds = cost::compute_seconds(program_, op, cluster_);
    const double began = lanes_.now();
    lanes_.compute(seconds);
    result_.compute_seconds += seconds;
    if (recorder_ != nullptr && counting_)
      recorder_->add(recorder_->name(program::print_op(program_, op)), op.stream,
                     {began - began_, lanes_.now() - began_}, 0);
  }

  void start(const Op& op, const program::StepPlan& plan) {
    Flight flight;
    const program::Group& group = program_.groups[op.group];
    flight.level = group.level;
    for (const int64_t number : plan.after) flight.after.push_back(first_ + number);
    for (const int64_t slot : plan.carries) flight.after.push_back(carries_.at(slot));
    const double seconds = cost::transfer_seconds(program_, op, rank_, cluster_);
    flight.latency_seconds =
        group.size > 1 ? std::min(seconds, cluster_.levels[group.level].latency_seconds) : 0;
    flight.work_seconds = seconds - flight.latency_seconds;
    const int64_t number = lanes_.issue(op.stream, std::move(flight));
    if (recorder_ != nullptr && counting_) flights_.push_back({&op, number});
    count(op);
  }

  void count(const Op& op) {
    auto [found, fresh] = bytes_.try_emplace(&op);
    if (fresh) found->second = scheduled_bytes(program_, op, cluster_);
    for (size_t level = 0; level < found->second.size(); ++level) {
      const int64_t bytes = found->second[level];
      if (bytes == 0) continue;
      const int64_t metadata = program::metadata_in(op, bytes);
      result_.level_bytes[level] += bytes - metadata;
      result_.traffic.add(collective::operation_name(operation_of(op.kind)),
                          static_cast<int64_t>(level), op.codec, bytes - metadata, metadata,
                          program_.ranks);
    }
  }

  const Program& program_;
  const Cluster& cluster_;
  trace::Recorder* recorder_;
  program::LifetimeTracker tracker_;
  Lanes lanes_;
  int64_t rank_;
  int64_t first_ = 0;                   // number of the first flight of this execution
  double began_ = 0;                    // of the execution that counts
  bool counting_ = false;               // this is the execution that counts
  std::map<int64_t, int64_t> carries_;  // slot -> flight of the execution before
  std::vector<std::pair<const Op*, int64_t>> flights_;  // while recording
  std::unordered_map<const Op*, std::vector<int64_t>> bytes_;
  Result result_;
};

}  // namespace

std::vector<int64_t> scheduled_bytes(const Program& program, const Op& op, const Cluster& cluster) {
  std::vector<int64_t> bytes(cluster.levels.size(), 0);
  const program::Group& group = program.groups[op.group];
  if (op.kind == OpKind::kBarrier || group.size == 1) return bytes;
  const int64_t element = dtype_bytes(program::transfer_array(program, op).dtype);
  for (int64_t rank = 0; rank < program.ranks; ++rank) {
    if (group.base(rank) != rank) continue;  // one visit per group
    std::vector<int64_t> ranks;
    for (int64_t at = 0; at < group.size; ++at) ranks.push_back(group.member(rank, at));
    for (const collective::Transfer& transfer :
         schedule_of(program, op, cluster, ranks).transfers) {
      if (transfer.from == transfer.to) continue;
      const int64_t level = cluster.level_between(ranks[transfer.from], ranks[transfer.to]);
      bytes[level] += transfer.elements * element;
    }
  }
  return bytes;
}

Result simulate(const Program& program, const Cluster& cluster, trace::Recorder* recorder) {
  return Replay(program, cluster, recorder).run();
}

}  // namespace strait::sim
