#ifdef STRAIT_MPI

#include "strait/measure/gloo_peer.h"

#ifdef STRAIT_GLOO

#include <torch/version.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <ATen/ops/ones.h>

namespace strait::measure {

struct GlooPeer::Group {
  comm::Operation operation;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;
  std::vector<at::Tensor> whole, part;
  std::vector<std::vector<at::Tensor>> parts;
  at::Tensor other;
};

GlooPeer::GlooPeer(const CollectiveCase& collective, comm::MpiSession& session, int64_t part)
    : group_(std::make_unique<Group>()) {
  group_->operation = operation_by_name(collective.operation);
  const auto type = collective.dtype == Dtype::kFloat32 ? at::kFloat : at::kDouble;
  group_->whole = {at::ones({part * collective.ranks}, type)};
  group_->other = at::ones({part * collective.ranks}, type);
  group_->part = {at::ones({part}, type)};
  group_->parts.emplace_back();
  for (int64_t rank = 0; rank < collective.ranks; ++rank)
    group_->parts[0].push_back(group_->whole[0].narrow(0, rank * part, part));
  const std::string path =
      session.exchange("/tmp/strait-gloo-" + std::to_string(::getpid())).front();
  std::string failure;
  try {
    auto options = c10d::ProcessGroupGloo::Options::create();
    options->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
    const auto store = c10::make_intrusive<c10d::FileStore>(path, static_cast<int>(session.size()));
    group_->gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(
        store, static_cast<int>(session.rank()), static_cast<int>(session.size()), options);
  } catch (const std::exception& error) {
    failure = error.what();
  }
  for (const std::string& other : session.exchange(failure))
    if (missing_.empty()) missing_ = other;
  ::unlink(path.c_str());
}

GlooPeer::~GlooPeer() = default;

std::string GlooPeer::version() const { return "c10d of LibTorch " TORCH_VERSION; }

void GlooPeer::run() {
  switch (group_->operation) {
    case comm::Operation::kAllGather:
      group_->gloo->allgather(group_->parts, group_->part)->wait();
      return;
    case comm::Operation::kAllToAll: {
      std::vector<int64_t> even;
      group_->gloo->alltoall_base(group_->other, group_->whole[0], even, even)->wait();
      return;
    }
    case comm::Operation::kBroadcast:
      group_->gloo->broadcast(group_->whole)->wait();
      return;
    default:
      group_->gloo->allreduce(group_->whole)->wait();
  }
}

}  // namespace strait::measure

#else

namespace strait::measure {

struct GlooPeer::Group {};
GlooPeer::GlooPeer(const CollectiveCase&, comm::MpiSession&, int64_t)
    : missing_("built without the headers of Gloo (libgloo-dev)") {}
GlooPeer::~GlooPeer() = default;
std::string GlooPeer::version() const { return ""; }
void GlooPeer::run() {}

}  // namespace strait::measure

#endif
#endif
