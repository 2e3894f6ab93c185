#include "strait/comm/call_form.h"

#include <numeric>

#include "strait/collective/choose.h"
#include "strait/comm/call_check.h"

namespace strait::comm {
namespace {

using collective::Algorithm;

bool can_force(const collective::Request& request, Algorithm algorithm) {
  return collective::has_form(request.operation, algorithm) &&
         (algorithm != Algorithm::kRecursive || collective::is_power_of_two(request.members));
}

}  // namespace

CallForm form_of(const Call& call, const std::vector<int64_t>& members, const Cluster& cluster,
                 std::optional<Algorithm> forced) {
  CallForm form;
  collective::Request& request = form.request;
  request.operation = call.operation;
  request.members = static_cast<int64_t>(members.size());
  request.counts = part_counts(call, request.members);
  request.root = has_common_peer(call.operation) ? call.peer : 0;
  form.whole_bytes = std::accumulate(request.counts.begin(), request.counts.end(), int64_t{0}) *
                     dtype_bytes(call.dtype);
  if (!forced) {
    collective::choose_form(request, form.whole_bytes, cluster, members);
  } else if (can_force(request, *forced)) {
    request.algorithm = *forced;
    if (*forced == Algorithm::kHierarchical)
      collective::choose_hierarchical(request, form.whole_bytes, cluster, members);
  }
  const bool direct = request.algorithm == Algorithm::kDirect;
  const bool all_reduce = call.operation == Operation::kAllReduce;
  form.needs_scratch = !direct && (all_reduce || call.operation == Operation::kReduceScatter);
  form.destination_read = all_reduce || (!direct && call.operation != Operation::kReduceScatter);
  form.staged = call.accumulate && form.destination_read;
  return form;
}

}  // namespace strait::comm
