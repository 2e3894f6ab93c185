#include "strait/comm/mpi/exchange.h"

#include <algorithm>

#include "strait/comm/call_check.h"

namespace strait::comm {

using collective::Transfer;

namespace {

void mix(uint64_t& hash, int64_t value) {
  hash ^= static_cast<uint64_t>(value);
  hash *= 1099511628211ull;
}

/// Of what all members of a call must agree on.
uint64_t digest_of(const Call& call) {
  uint64_t hash = 14695981039346656037ull;
  mix(hash, static_cast<int64_t>(call.operation));
  mix(hash, static_cast<int64_t>(call.dtype));
  mix(hash, has_common_peer(call.operation) ? call.peer : -1);
  if (call.operation != Operation::kAllToAll)
    for (const int64_t count : call.counts) mix(hash, count);
  return hash;
}

}  // namespace

Exchange::Exchange(MpiSite& site, std::vector<int64_t> members, uint64_t number)
    : site_(site), members_(std::move(members)), number_(number) {
  for (size_t at = 0; at < members_.size(); ++at) {
    const int64_t rank = members_[at];
    if (rank == site_.rank()) position_ = static_cast<int64_t>(at);
    places_.push_back(site_.place(rank));
    levels_.push_back(rank == site_.rank() ? 0 : site_.cluster.level_between(rank, site_.rank()));
    if (site_.place(rank) >= 0) locals_.push_back(static_cast<int64_t>(at));
  }
  channel_ = site_.board.channel(number);
}

Exchange::~Exchange() {
  for (Reserve* reserve : {&source_, &result_, &scratch_, &row_})
    if (reserve->data != nullptr) site_.memory.release(reserve->data);
}

char* Exchange::grow(Reserve& reserve, int64_t bytes) {
  if (reserve.bytes >= bytes) return reserve.data;
  if (reserve.data != nullptr) site_.memory.release(reserve.data);
  reserve = {static_cast<char*>(site_.memory.allocate(bytes)), bytes};
  return reserve.data;
}

int Exchange::tag(bool pairwise) const {
  const uint64_t space = static_cast<uint64_t>(site_.messages.largest_tag()) / 2;
  return static_cast<int>(2 * (number_ % space) + (pairwise ? 1 : 0));
}

HostWait Exchange::wait_of(const Call& call) const {
  return {site_, call, site_.clock.deadline_after(call.deadline_seconds),
          site_.board.signal(channel_), number_};
}

const Exchange::Plan& Exchange::plan_of(const Call& call) {
  const int64_t root = has_common_peer(call.operation) ? call.peer : -1;
  const auto [found, fresh] =
      plans_.try_emplace(PlanKey{call.operation, call.dtype, call.accumulate, root, call.counts});
  Plan& plan = found->second;
  if (!fresh) return plan;
  plan.form = form_of(call, members_, site_.cluster, site_.algorithm);
  plan.digest = digest_of(call);
  if (call.operation != Operation::kAllToAll) fill(plan);
  return plan;
}

void Exchange::fill(Plan& plan) const {
  plan.pulls = collective::transfers_to(plan.form.request, position_);
  for (int64_t member = 0; member < static_cast<int64_t>(members_.size()); ++member) {
    if (is_here(member)) continue;
    for (const Transfer& transfer : collective::transfers_to(plan.form.request, member))
      if (transfer.from == position_) plan.pushes.push_back(transfer);
  }
  std::stable_sort(plan.pushes.begin(), plan.pushes.end(),
                   [](const Transfer& a, const Transfer& b) { return a.step < b.step; });
  for (const auto* transfers : {&plan.pulls, &plan.pushes})
    for (const Transfer& transfer : *transfers)
      plan.steps = std::max(plan.steps, transfer.step + 1);
  for (int64_t step = 0; step < plan.steps; ++step)
    plan.early.push_back(step > 0 && !waits_for_messages(plan, step));
}

bool Exchange::waits_for_messages(const Plan& plan, int64_t step) const {
  const auto meets = [](const Transfer& made, const Transfer& sent) {
    return made.destination == sent.source &&
           made.destination_offset < sent.source_offset + sent.elements &&
           sent.source_offset < made.destination_offset + made.elements;
  };
  const auto changed = [&](const Transfer& sent) {
    return sent.step == step &&
           std::any_of(plan.pulls.begin(), plan.pulls.end(), [&](const Transfer& pull) {
             return pull.step == step - 1 && !is_here(pull.from) && meets(pull, sent);
           });
  };
  return std::any_of(plan.pushes.begin(), plan.pushes.end(), changed);
}

}  // namespace strait::comm
