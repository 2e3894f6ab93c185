#ifdef STRAIT_MPI

#include "strait/measure/gloo_peer.h"

#ifdef STRAIT_GLOO

#include <torch/version.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <ATen/ops/ones.h>

#endif

namespace strait::measure {
namespace {

#ifdef STRAIT_GLOO

class Peer final : public GlooPeer {
 public:
  Peer(const CollectiveCase& collective, comm::MpiSession& session, int64_t part)
      : operation_(operation_by_name(collective.operation)) {
    const auto type = collective.dtype == Dtype::kFloat32 ? at::kFloat : at::kDouble;
    whole_ = {at::ones({part * collective.ranks}, type)};
    other_ = at::ones({part * collective.ranks}, type);
    part_ = {at::ones({part}, type)};
    parts_.emplace_back();
    for (int64_t rank = 0; rank < collective.ranks; ++rank)
      parts_[0].push_back(whole_[0].narrow(0, rank * part, part));
    const std::string path =
        session.exchange("/tmp/strait-gloo-" + std::to_string(::getpid())).front();
    for (const std::string& other : session.exchange(connect(session, path)))
      if (missing_.empty()) missing_ = other;
    ::unlink(path.c_str());
  }

  std::string missing() const override { return missing_; }
  std::string version() const override { return "c10d of LibTorch " TORCH_VERSION; }

  void run() override {
    switch (operation_) {
      case comm::Operation::kAllGather:
        gloo_->allgather(parts_, part_)->wait();
        return;
      case comm::Operation::kAllToAll: {
        std::vector<int64_t> even;
        gloo_->alltoall_base(other_, whole_[0], even, even)->wait();
        return;
      }
      case comm::Operation::kBroadcast:
        gloo_->broadcast(whole_)->wait();
        return;
      default:
        gloo_->allreduce(whole_)->wait();
    }
  }

 private:
  /// What goes wrong, or nothing.
  std::string connect(const comm::MpiSession& session, const std::string& path) {
    try {
      auto options = c10d::ProcessGroupGloo::Options::create();
      options->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
      const auto size = static_cast<int>(session.size());
      const auto store = c10::make_intrusive<c10d::FileStore>(path, size);
      gloo_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store, static_cast<int>(session.rank()),
                                                          size, options);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }

  comm::Operation operation_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  std::vector<at::Tensor> whole_, part_;
  std::vector<std::vector<at::Tensor>> parts_;
  at::Tensor other_;
  std::string missing_;
};

#else

class Peer final : public GlooPeer {
 public:
  Peer(const CollectiveCase&, comm::MpiSession&, int64_t) {}
  std::string missing() const override { return "built without the headers of Gloo (libgloo-dev)"; }
  std::string version() const override { return ""; }
  void run() override {}
};

#endif

const Provides kPeer(
    make_gloo_peer,
    +[](const CollectiveCase& collective, comm::MpiSession& session, int64_t part)
        -> std::unique_ptr<GlooPeer> { return std::make_unique<Peer>(collective, session, part); });

}  // namespace
}  // namespace strait::measure

#endif
