#include "strait/sim/actor.h"

#include <algorithm>
#include <map>

#include "strait/collective/choose.h"
#include "strait/collective/unasked.h"
#include "strait/cost/cost.h"
#include "strait/program/transfer.h"

namespace strait::sim {

using program::Op;
using program::OpKind;

namespace {

/// What each level takes of the processors that also compute.
std::vector<double> processor_shares(const Cluster& cluster) {
  std::vector<double> shares;
  for (const Level& level : cluster.levels) shares.push_back(level.processor_share);
  return shares;
}

/// Blocks of `size` ranks in which representatives of the colours stand.
Blocks blocks_of(const program::Colouring& colouring, int64_t size, int64_t all) {
  Blocks blocks;
  std::map<int64_t, int64_t> known;  // block -> its place among them
  for (int64_t colour = 0; colour < colouring.colours(); ++colour) {
    const int64_t block = colouring.rank(colour) / size;
    const auto [place, fresh] = known.try_emplace(block, static_cast<int64_t>(blocks.ranks.size()));
    blocks.of_actor.push_back(place->second);
    if (!fresh) continue;
    std::map<int64_t, int64_t> counts;  // by colour
    const int64_t end = std::min((block + 1) * size, all);
    for (int64_t rank = block * size; rank < end; ++rank) ++counts[colouring.colour(rank)];
    std::vector<Blocks::Ranks>& ranks = blocks.ranks.emplace_back();
    for (const auto& [actor, count] : counts) ranks.push_back({actor, count});
  }
  return blocks;
}

/// Who takes turns with whom on which cores, as the representatives of the colours do.
Machines machines_of(const program::Colouring& colouring, const Cluster& cluster) {
  Machines machines;
  machines.alone_speed = cluster.alone_speed();
  if (machines.alone_speed <= 1) return machines;
  static_cast<Blocks&>(machines) = blocks_of(colouring, cluster.ranks_per_machine, cluster.ranks);
  machines.all = static_cast<double>(cluster.ranks_per_machine);
  return machines;
}

/// Whose messages share the links into each level. A rank alone has its lanes to share.
std::vector<Uplinks> uplinks_of(const program::Colouring& colouring, const Cluster& cluster) {
  std::vector<Uplinks> uplinks(cluster.levels.size());
  for (size_t level = 1; level < uplinks.size(); ++level) {
    const int64_t below = cluster.group_size(static_cast<int64_t>(level) - 1);
    if (below == 1) continue;
    uplinks[level] = {blocks_of(colouring, below, cluster.ranks), cluster.levels[level].links};
  }
  return uplinks;
}

int64_t message_bytes(const program::Program& program, const Op& op, int64_t rank) {
  return program::transfer_split(program, op, rank).elements() *
         dtype_bytes(program::transfer_array(program, op).dtype);
}

int64_t most_streams(std::span<const program::Program> classes) {
  size_t most = 0;
  for (const program::Program& program : classes) most = std::max(most, program.streams.size());
  return static_cast<int64_t>(most);
}

}  // namespace

Scene::Scene(std::span<const program::Program> programs, const Cluster& on)
    : classes(programs),
      cluster(on),
      exchange(programs),
      colouring(exchange),
      meetings(exchange, colouring),
      lanes(colouring.colours(), most_streams(programs), processor_shares(on),
            machines_of(colouring, on), uplinks_of(colouring, on)) {}

Actor::Actor(Scene& scene, int64_t colour, int executions, trace::Recorder* recorder)
    : scene_(scene),
      colour_(colour),
      executions_(executions),
      recorder_(recorder),
      program_(scene.classes[scene.exchange.class_of(scene.colouring.rank(colour))]),
      tracker_(program_),
      cursor_(program_) {
  result_.rank = scene.colouring.rank(colour);
  result_.rank_class = scene.exchange.class_of(result_.rank);
  result_.count = scene.colouring.count(colour);
  begin_execution();
}

void Actor::begin_execution() {
  std::vector<int64_t> carried;
  for (const auto& [slot, flight] : carries_) carried.push_back(slot);
  tracker_.begin(carried);
  cursor_.rewind();
  numbers_.clear();
  issued_.clear();
  sends_.assign(program_.streams.size(), {});
  began_ = scene_.lanes.now();
  starved_ = scene_.lanes.starved_seconds(colour_);
  events_ = 0;
  result_.compute_seconds = result_.exposed_seconds = result_.bubble_seconds = 0;
}

void Actor::resume() {
  while (!ended() && scene_.lanes.idle(colour_)) go_on();
}

void Actor::go_on() {
  if (wait_began_ >= 0) count_wait();
  if (!waits_.empty()) return wait();
  if (computing_) return end_compute();
  if (op_ != nullptr) return run_op();
  if (finish_ != nullptr) return finish_execution();
  next_op();
}

void Actor::wait() {
  wait_began_ = scene_.lanes.now();
  scene_.lanes.await(colour_, waits_.front());
  waits_.pop_front();
}

/// A wait has ended: for the rank's own links, or for other ranks.
void Actor::count_wait() {
  const double starved = scene_.lanes.starved_seconds(colour_) - starved_;
  starved_ += starved;
  result_.bubble_seconds += starved;
  result_.exposed_seconds += scene_.lanes.now() - wait_began_ - starved;
  wait_began_ = -1;
}

void Actor::next_op() {
  op_ = cursor_.next();
  if (op_ == nullptr) {
    finish_ = &tracker_.finish();
    for (const int64_t number : finish_->wait_for) add_ends(number, waits_);
    return;
  }
  plan_ = &tracker_.next(*op_, cursor_.loops());
  for (const int64_t number : plan_->wait_for) add_ends(number, waits_);
  if (plan_->communication >= 0) return;
  for (const int64_t slot : plan_->carries) waits_.push_back(carries_.at(slot));
}

/// To the tracker a transfer ends after those before it on its stream; sends, which hold up
/// nothing, are awaited for themselves.
template <class Flights>
void Actor::add_ends(int64_t number, Flights& flights) {
  flights.push_back(numbers_[number]);
  std::vector<int64_t>& sends = sends_[issued_[number]->stream];
  std::erase_if(sends,
                [&](int64_t send) { return scene_.lanes.flight(numbers_[send]).landed >= 0; });
  for (const int64_t send : sends)
    if (send < number) flights.push_back(numbers_[send]);
}

void Actor::run_op() {
  if (program::is_free(*op_)) {
    op_ = nullptr;
    return;
  }
  ++events_;
  if (plan_->communication >= 0) {
    start();
    op_ = nullptr;
    return;
  }
  const double seconds =
      seconds_of(*op_, [&] { return cost::compute_seconds(program_, *op_, scene_.cluster); });
  compute_began_ = scene_.lanes.now();
  computing_ = true;
  scene_.lanes.compute(colour_, seconds);
}

void Actor::end_compute() {
  computing_ = false;
  result_.compute_seconds += scene_.lanes.now() - compute_began_;
  if (records())
    recorder_->add(recorder_->name(program::print_op(program_, *op_)), op_->stream,
                   {compute_began_ - began_, scene_.lanes.now() - began_}, 0);
  op_ = nullptr;
}

void Actor::start() {
  std::vector<int64_t> after;
  for (const int64_t number : plan_->after) add_ends(number, after);
  // Communicators keep the order of their own operations alone.
  if (plan_->previous >= 0 && issued_[plan_->previous]->group != op_->group)
    after.push_back(numbers_[plan_->previous]);
  for (const int64_t slot : plan_->carries) after.push_back(carries_.at(slot));
  const int64_t meeting = scene_.meetings.at(colour_, plan_->communication);
  int64_t& number = scene_.flights[execution_ * scene_.meetings.count() + meeting];
  if (number < 0) number = scene_.lanes.open(flight(scene_.meetings.sides(meeting)));
  const Way way = op_->kind == OpKind::kSend      ? Way::kOut
                  : op_->kind == OpKind::kReceive ? Way::kIn
                                                  : Way::kBoth;
  if (way == Way::kOut) sends_[op_->stream].push_back(plan_->communication);
  numbers_.push_back(number);
  issued_.push_back(op_);
  if (records()) flown_.emplace_back(op_, number);
  scene_.lanes.arrive(number, {colour_, op_->stream, way}, after);
}

/// The transfer of the present op, as its first side sees it. Backends send short messages unasked.
/// The receiver of a longer one asks for it, once it has been told: two more ways along the link.
Flight Actor::flight(int64_t sides) {
  const program::Group& group = program_.groups[op_->group];
  const int64_t peer = program::evaluate(op_->peer, cursor_.loops());
  Flight flight;
  flight.sides = sides;
  flight.level = group.level;
  double seconds = 0, ways = 1;
  if (program::is_message(op_->kind)) {
    flight.level = scene_.cluster.level_between(result_.rank, group.member(result_.rank, peer));
    seconds = cost::lone_message_seconds(program_, *op_, result_.rank, scene_.cluster, peer);
    flight.unasked = message_bytes(program_, *op_, result_.rank) <= collective::kMostUnaskedBytes;
    if (!flight.unasked) ways = 3;
  } else {
    seconds = seconds_of(
        *op_, [&] { return cost::transfer_seconds(program_, *op_, result_.rank, scene_.cluster); });
  }
  const double latency = scene_.cluster.levels[flight.level].latency_seconds;
  flight.latency_seconds = group.size > 1 ? std::min(seconds, latency) : 0;
  flight.work_seconds = seconds - flight.latency_seconds;
  if (group.size > 1 && !flight.unasked)  // behind what nobody asks for the next one is under way
    flight.late_seconds = collective::late_seconds(scene_.cluster.levels[flight.level]);
  flight.latency_seconds *= ways;
  return flight;
}

void Actor::finish_execution() {
  carries_.clear();
  for (const auto& [slot, number] : finish_->outstanding) carries_[slot] = numbers_[number];
  finish_ = nullptr;
  ended_ = scene_.lanes.now();
  result_.seconds = ended_ - began_;
  if (++execution_ < executions_) begin_execution();
}

void Actor::record_flights() const {
  for (const auto& [op, number] : flown_) {
    const Flight& flight = scene_.lanes.flight(number);
    if (flight.landed >= 0)
      recorder_->add(recorder_->name(program::print_op(program_, *op)), op->stream,
                     {flight.started - began_, flight.landed - began_}, 0);
  }
}

}  // namespace strait::sim
