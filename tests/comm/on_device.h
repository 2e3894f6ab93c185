// A communicator of device memory behind one of plain memory, so that the same grid tests both.
#pragma once

#include "strait/comm/communicator.h"
#include "strait/tensor/device.h"
#include "tests/comm/thread_ranks.h"

namespace strait::comm {

/// Carries the buffers of a call to the device and back, those that share memory as one.
class OnDevice final : public Communicator {
 public:
  OnDevice(Communicator& inner, tensor::Device& device) : inner_(inner), device_(device) {}
  int64_t position() const override { return inner_.position(); }
  int64_t size() const override { return inner_.size(); }
  void drain_ledger(Ledger& ledger) override { inner_.drain_ledger(ledger); }

  Ticket start(const Call& call, const std::vector<Ticket>& after) override {
    const int64_t whole = total(call.counts) * dtype_bytes(call.dtype);
    const bool gathers = call.operation == Operation::kAllGather;
    const int64_t source_bytes =
        gathers ? call.counts[position()] * dtype_bytes(call.dtype) : whole;
    int64_t destination_bytes = whole;
    if (call.operation == Operation::kReduceScatter)
      destination_bytes = call.counts[position()] * dtype_bytes(call.dtype);
    if (call.operation == Operation::kAllToAll)
      destination_bytes = total(call.receive_counts) * dtype_bytes(call.dtype);
    Call moved = call;
    const char* const source = static_cast<const char*>(call.source);
    char* const destination = static_cast<char*>(call.destination);
    const auto inside = [](const char* at, const char* first, int64_t bytes) {
      return at && first && at >= first && at < first + bytes;
    };
    char *from = nullptr, *to = nullptr;
    const bool wider = destination_bytes > source_bytes;
    if (source && (!wider || !inside(source, destination, destination_bytes)))
      from = static_cast<char*>(device_.allocate(source_bytes));
    if (!wider && inside(destination, source, source_bytes)) {
      to = from + (destination - source);
    } else if (destination) {
      to = static_cast<char*>(device_.allocate(destination_bytes));
      if (source && !from) from = to + (source - destination);
    }
    tensor::copy_bytes(&device_, source, from, source ? source_bytes : 0);
    tensor::copy_bytes(&device_, destination, to, destination ? destination_bytes : 0);
    moved.source = from;
    moved.destination = to;
    inner_.start(moved, after).wait();
    if (destination) tensor::copy_bytes(&device_, to, destination, destination_bytes);
    return {};
  }

 private:
  Communicator& inner_;
  tensor::Device& device_;
};

}  // namespace strait::comm
