// One call of an exchange, from arrival to end.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "strait/comm/call_check.h"
#include "strait/comm/mpi/exchange.h"
#include "strait/comm/mpi/turns.h"
#include "strait/comm/sums.h"

namespace strait::comm {

using collective::Place;
using collective::Transfer;

namespace {

int64_t sum_of(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

}  // namespace

/// One call from arrival to end.
class Exchange::Run {
 public:
  Run(Exchange& exchange, const Call& call, const Plan& plan, int64_t sequence)
      : x_(exchange),
        site_(exchange.site_),
        call_(call),
        plan_(plan),
        sequence_(sequence),
        wait_(exchange.wait_of(call)),
        slot_(site_.board.slot(x_.channel_, site_.memory.own())),
        turns_(site_.messages, x_.tag(false)),
        sent_{std::vector<int64_t>(site_.cluster.levels.size(), 0)} {}

  SentBytes run() {
    offer();
    await_locals([](const HostSlot& slot) { return slot.arrived.load(std::memory_order_acquire); },
                 sequence_ + 1);
    agree();
    Plan whole;
    if (call_.operation == Operation::kAllToAll) whole = all_to_all_plan();
    const Plan& plan = call_.operation == Operation::kAllToAll ? whole : plan_;
    for (int64_t step = 0; step < plan.steps; ++step) make_step(plan, step);
    finish();
    return std::move(sent_);
  }

 private:
  int64_t element() const { return dtype_bytes(call_.dtype); }
  int64_t parity() const { return sequence_ & 1; }
  bool shared() const { return x_.locals_.size() > 1; }

  int64_t source_bytes() const {
    if (call_.operation == Operation::kBarrier || call_.source == nullptr) return 0;
    if (call_.operation == Operation::kAllGather)
      return plan_.form.request.counts[x_.position_] * element();
    if (call_.operation == Operation::kBroadcast && call_.peer != x_.position_) return 0;
    return plan_.form.whole_bytes;
  }

  /// Lays the buffers where the other ranks of the host can read them, and tells where.
  void offer() {
    const CallForm& form = plan_.form;
    const int64_t own_bytes = source_bytes();
    inline_ = x_.locals_.size() == x_.members_.size() && !form.needs_scratch &&
              own_bytes <= kInlineBytes &&
              (!form.destination_read || form.whole_bytes <= kInlineBytes);
    HostOffer& offer = slot_.offers[parity()];
    offer = HostOffer{};
    offer.digest = plan_.digest;
    offer.operation = static_cast<int64_t>(call_.operation);
    offer.dtype = static_cast<int64_t>(call_.dtype);
    offer.elements = sum_of(call_.counts);
    offer.label = Label(call_.label);
    if (shared() && own_bytes > 0) offer.source = offer_source(own_bytes);
    result_ = static_cast<char*>(call_.destination);
    if (form.destination_read) offer.destination = offer_result();
    if (form.needs_scratch && form.whole_bytes > 0) {
      scratch_ = x_.grow(x_.scratch_, form.whole_bytes);
      offer.scratch = site_.memory.offset_of(scratch_, form.whole_bytes);
    }
    if (call_.operation == Operation::kAllToAll && shared()) offer.row = offer_row();
    slot_.progress.store(sequence_ * kStepsPerCollective, std::memory_order_release);
    slot_.arrived.store(sequence_ + 1, std::memory_order_release);
    tell();
  }

  int64_t offer_source(int64_t bytes) {
    if (inline_) {
      std::memcpy(slot_.source[parity()], call_.source, bytes);
      return kInline;
    }
    const int64_t offset = site_.memory.offset_of(call_.source, bytes);
    if (offset >= 0) return offset;
    char* staging = x_.grow(x_.source_, bytes);
    copy_bytes(call_.source, staging, bytes);
    return site_.memory.offset_of(staging, bytes);
  }

  int64_t offer_result() {
    const int64_t bytes = plan_.form.whole_bytes;
    if (result_ == nullptr || bytes == 0) return kNowhere;  // a root that keeps no copy
    if (inline_) {
      result_ = slot_.result[parity()];
      return kInline;
    }
    const int64_t offset = site_.memory.offset_of(result_, bytes);
    if (!plan_.form.staged && (offset >= 0 || !shared())) return offset;
    result_ = x_.grow(x_.result_, bytes);
    return site_.memory.offset_of(result_, bytes);
  }

  int64_t offer_row() {
    const int64_t bytes = static_cast<int64_t>(call_.counts.size() * sizeof(int64_t));
    if (bytes <= kInlineBytes) {  // an all-to-all has no result that others read
      std::memcpy(slot_.result[parity()], call_.counts.data(), bytes);
      return kInline;
    }
    char* rows = x_.grow(x_.row_, 2 * bytes) + parity() * bytes;
    std::memcpy(rows, call_.counts.data(), bytes);
    return site_.memory.offset_of(rows, bytes);
  }

  void tell() const { site_.board.signal(x_.channel_).notify(); }
  HostSlot& slot_of(int64_t member) const {
    return site_.board.slot(x_.channel_, x_.places_[member]);
  }
  const HostOffer& offer_of(int64_t member) const { return slot_of(member).offers[parity()]; }

  template <class Counter>
  void await_locals(const Counter& counter, int64_t wanted) {
    const auto is_late = [&](int64_t member) {
      return member != x_.position_ && counter(slot_of(member)) < wanted;
    };
    wait([&] { return std::none_of(x_.locals_.begin(), x_.locals_.end(), is_late); },
         [&] {
           std::vector<int64_t> late;
           for (const int64_t member : x_.locals_)
             if (is_late(member)) late.push_back(x_.members_[member]);
           return late;
         });
  }

  template <class Ready, class Late>
  void wait(const Ready& ready, const Late& late) {
    if (!ready())
      wait_.until(
          ready, [this] { return drive(); }, late);
  }

  /// Drives the messages under way; true while there are any, or some that may begin now.
  bool drive() {
    std::vector<Message*>& left = x_.under_way_;
    left.clear();
    turns_.collect(left);
    if (left.empty()) return false;
    return site_.messages.test(left) < static_cast<int64_t>(left.size()) || turns_.has_waiting();
  }

  void agree() const {
    for (const int64_t member : x_.locals_) {
      if (member == x_.position_) continue;
      const HostOffer& other = offer_of(member);
      if (other.digest == plan_.digest && row_fits(member)) continue;
      const auto text = [&](int64_t operation, int64_t dtype, int64_t elements, const auto& label) {
        return std::string(operation_name(static_cast<Operation>(operation))) + " \"" +
               std::string(label) + "\" " + dtype_name(static_cast<Dtype>(dtype)) + " of " +
               std::to_string(elements) + " elements";
      };
      const int64_t rank = x_.members_[member];
      throw UserError(
          describe(call_, site_.rank()) + ": the members disagree: " +
              text(static_cast<int64_t>(call_.operation), static_cast<int64_t>(call_.dtype),
                   sum_of(call_.counts), call_.label) +
              " meets " + text(other.operation, other.dtype, other.elements, other.label.view()) +
              " on rank " + std::to_string(rank),
          place_of(call_, rank));
    }
  }

  const int64_t* row_of(int64_t member) const {
    const int64_t row = offer_of(member).row;
    return reinterpret_cast<const int64_t*>(row == kInline
                                                ? slot_of(member).result[parity()]
                                                : site_.memory.address(x_.places_[member], row));
  }
  bool row_fits(int64_t member) const {
    if (call_.operation != Operation::kAllToAll) return true;
    return row_of(member)[x_.position_] == call_.receive_counts[member];
  }

  /// Rows of members elsewhere are known as far as they concern this one, which is all that counts.
  Plan all_to_all_plan() const {
    Plan plan;
    plan.form = plan_.form;
    const int64_t n = static_cast<int64_t>(x_.members_.size());
    std::vector<int64_t>& counts = plan.form.request.counts;
    counts.assign(n * n, 0);
    for (int64_t from = 0; from < n; ++from) {
      for (int64_t to = 0; to < n; ++to)
        if (from == x_.position_)
          counts[from * n + to] = call_.counts[to];
        else if (x_.is_here(from))
          counts[from * n + to] = row_of(from)[to];
      counts[from * n + x_.position_] = call_.receive_counts[from];
    }
    x_.fill(plan);
    return plan;
  }

  static size_t group_end(const std::vector<Transfer>& pulls, size_t begin) {
    size_t end = begin + 1;
    while (end < pulls.size() && pulls[end].add) ++end;
    return end;
  }

  bool adds_to_caller(const Transfer& transfer) const {
    return call_.accumulate && !plan_.form.staged && transfer.destination == Place::kDestination;
  }

  void make_step(const Plan& plan, int64_t step) {
    if (step > 0) {
      slot_.progress.store(sequence_ * kStepsPerCollective + step, std::memory_order_release);
      tell();
    }
    if (posted_ == step) post_messages(plan, posted_++);
    // What can be read here first: the messages come in meanwhile, and those of the next step
    // follow at once.
    take_all(plan, step, false);
    if (step + 1 < plan.steps && plan.early[step + 1]) post_messages(plan, posted_++);
    take_all(plan, step, true);
    turns_.forget(step);
  }

  static std::pair<size_t, size_t> pulls_of(const Plan& plan, int64_t step) {
    const auto [begin, end] = std::equal_range(
        plan.pulls.begin(), plan.pulls.end(), Transfer{.step = step},
        [](const Transfer& left, const Transfer& right) { return left.step < right.step; });
    return {static_cast<size_t>(begin - plan.pulls.begin()),
            static_cast<size_t>(end - plan.pulls.begin())};
  }

  /// The pulls of a step that need a message (`remote`), or those that do not.
  void take_all(const Plan& plan, int64_t step, bool remote) {
    const auto [begin, end] = pulls_of(plan, step);
    size_t landing = 0;
    for (size_t at = begin, next = 0; at < end; at = next) {
      next = group_end(plan.pulls, at);
      const bool has_remote =
          std::any_of(plan.pulls.begin() + static_cast<int64_t>(at),
                      plan.pulls.begin() + static_cast<int64_t>(next),
                      [&](const Transfer& transfer) { return !x_.is_here(transfer.from); });
      if (has_remote == remote) take(plan.pulls.data() + at, plan.pulls.data() + next, landing);
    }
  }

  void post_messages(const Plan& plan, int64_t step) {
    std::vector<Passage> landings = landings_of(plan, step), sendings;
    for (const Transfer& push : plan.pushes)
      if (push.step == step)
        sendings.push_back(passage(own_address(push.source, push.source_offset), push, push.to));
    if (!landings.empty() || !sendings.empty())
      turns_.begin(step, std::move(landings), std::move(sendings));
  }

  std::vector<Passage> landings_of(const Plan& plan, int64_t step) {
    std::vector<Passage> landings;
    const auto [begin, end] = pulls_of(plan, step);
    int64_t bytes = 0;
    for (size_t at = begin; at < end; ++at)
      if (!x_.is_here(plan.pulls[at].from)) bytes += plan.pulls[at].elements * element();
    if (bytes == 0) return landings;
    std::vector<char>& room = x_.landing_[step & 1];
    if (static_cast<int64_t>(room.size()) < bytes) room.resize(bytes);
    char* spare = room.data();
    for (size_t at = begin, next = 0; at < end; at = next) {
      next = group_end(plan.pulls, at);
      for (size_t i = at; i < next; ++i) {
        const Transfer& pull = plan.pulls[i];
        if (x_.is_here(pull.from)) continue;
        const bool in_place = next - at == 1 && !adds_to_caller(pull);
        char* data = in_place ? own_address(pull.destination, pull.destination_offset) : spare;
        landings.push_back(passage(data, pull, pull.from));
        landings.back().in_place = in_place;
        if (!in_place) spare += landings.back().bytes;
      }
    }
    return landings;
  }

  Passage passage(char* data, const Transfer& transfer, int64_t other) const {
    Passage passage;
    passage.data = data;
    passage.bytes = transfer.elements * element();
    passage.other = x_.members_[other];
    const int64_t members = static_cast<int64_t>(x_.members_.size());
    passage.turn = (transfer.from - transfer.to + members) % members;
    passage.level = x_.levels_[other];
    passage.seconds = static_cast<double>(passage.bytes) / site_.bytes_per_second(passage.level);
    return passage;
  }

  char* own_address(Place place, int64_t offset) const {
    const int64_t bytes = offset * element();
    if (place == Place::kScratch) return scratch_ + bytes;
    if (place == Place::kDestination) return result_ + bytes;
    return static_cast<char*>(const_cast<void*>(call_.source)) + bytes;
  }

  const char* address(const Transfer& pull) const {
    if (pull.from == x_.position_) return own_address(pull.source, pull.source_offset);
    const HostOffer& offer = offer_of(pull.from);
    const int64_t bytes = pull.source_offset * element();
    HostSlot& slot = slot_of(pull.from);
    const int64_t at = pull.source == Place::kSource        ? offer.source
                       : pull.source == Place::kDestination ? offer.destination
                                                            : offer.scratch;
    ensure(at != kNowhere, "a transfer reads a buffer that its member did not offer");
    if (at == kInline)
      return (pull.source == Place::kSource ? slot.source : slot.result)[parity()] + bytes;
    return site_.memory.address(x_.places_[pull.from], at + bytes);
  }

  void await_sender(const Transfer& pull) {
    if (pull.source == Place::kSource || pull.from == x_.position_) return;
    const HostSlot& slot = slot_of(pull.from);
    const int64_t wanted = sequence_ * kStepsPerCollective + pull.step;
    wait([&] { return slot.progress.load(std::memory_order_acquire) >= wanted; },
         [&] { return std::vector<int64_t>{x_.members_[pull.from]}; });
  }

  /// One sum, or one copy. `landing`: the next message in the order of post_receives.
  void take(const Transfer* begin, const Transfer* end, size_t& landing) {
    std::vector<const void*> sources;
    bool in_place = false;
    for (const Transfer* pull = begin; pull < end; ++pull) {
      if (!x_.is_here(pull->from)) {
        Passage& came = turns_.landing(pull->step, landing++);
        wait([&] { return came.is_done(); }, [&] { return turns_.awaited(); });
        in_place = came.in_place;
        sources.push_back(came.data);
        continue;
      }
      await_sender(*pull);
      sources.push_back(address(*pull));
    }
    if (in_place || (begin->destination == Place::kDestination && result_ == nullptr)) return;
    char* destination = own_address(begin->destination, begin->destination_offset);
    int64_t moved = begin->elements * element();
    if (sources.size() == 1 && !adds_to_caller(*begin))
      moved = site_.copy_chunk(sources[0], destination, moved);
    else
      sum_in_order(call_.dtype, sources, destination, begin->elements, adds_to_caller(*begin));
    for (const Transfer* pull = begin; pull < end; ++pull)
      if (x_.is_here(pull->from) && pull->from != x_.position_)
        sent_.by_level[x_.levels_[pull->from]] += moved;
  }

  void finish() {
    wait([&] { return turns_.all_sent(); }, [&] { return turns_.awaited(); });
    for (const Passage& sending : turns_.sendings())
      for (const Message& piece : sending.pieces) {
        sent_.by_level[sending.level] += piece.handed;
        sent_.network += piece.handed;
      }
    // Even when the last step was others' to make, they must see that this member's are done.
    slot_.progress.store((sequence_ + 1) * kStepsPerCollective, std::memory_order_release);
    slot_.finished.store(sequence_ + 1, std::memory_order_release);
    tell();
    if (!inline_)
      await_locals(
          [](const HostSlot& slot) { return slot.finished.load(std::memory_order_acquire); },
          sequence_ + 1);
    if (result_ == call_.destination || call_.destination == nullptr) return;
    if (call_.accumulate)
      sum_in_order(call_.dtype, {result_}, call_.destination, plan_.form.whole_bytes / element(),
                   true);
    else
      copy_bytes(result_, call_.destination, plan_.form.whole_bytes);
  }

  Exchange& x_;
  MpiSite& site_;
  const Call& call_;
  const Plan& plan_;
  const int64_t sequence_;
  const HostWait wait_;
  HostSlot& slot_;
  Turns turns_;
  SentBytes sent_;
  bool inline_ = false;
  char* result_ =
      nullptr;  // what this member makes: the destination, or a copy that others can read
  char* scratch_ = nullptr;
  int64_t posted_ = 0;  // steps whose messages have begun or wait for their turn
};

SentBytes Exchange::run(const Call& call, int64_t sequence) {
  return Run(*this, call, plan_of(call), sequence).run();
}

}  // namespace strait::comm
