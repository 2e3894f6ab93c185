#include "strait/trace/ledger.h"

#include <utility>

namespace strait {

void Ledger::add(const Traffic& traffic, const Started& started) {
  Counts& row = rows_[{traffic.operation, traffic.level, traffic.codec, started}];
  row.payload_bytes += traffic.payload_bytes;
  row.metadata_bytes += traffic.metadata_bytes;
  row.count += traffic.count;
}

void Ledger::merge(const Ledger& other) {
  for (const auto& [key, counts] : other.rows_) {
    Counts& row = rows_[key];
    row.payload_bytes += counts.payload_bytes;
    row.metadata_bytes += counts.metadata_bytes;
    row.count += counts.count;
  }
  network_bytes_ += other.network_bytes_;
}

void Ledger::take(int64_t step, int64_t outlived, Ledger& ended) {
  for (auto row = rows_.begin(); row != rows_.end();) {
    const auto& [operation, level, codec, started] = row->first;
    const Counts& counts = row->second;
    if (started.step > (started.outlives ? outlived : step)) {
      ++row;
      continue;
    }
    ended.add({operation, level, codec, counts.payload_bytes, counts.metadata_bytes, counts.count});
    row = rows_.erase(row);
  }
  ended.add_network(std::exchange(network_bytes_, 0));
}

int64_t Ledger::bytes() const {
  int64_t sum = 0;
  for (const auto& [key, counts] : rows_) sum += counts.payload_bytes + counts.metadata_bytes;
  return sum;
}

std::vector<Traffic> Ledger::rows() const {
  std::vector<Traffic> result;
  for (const auto& [key, counts] : rows_) {
    const auto& [operation, level, codec, started] = key;
    const bool alike = !result.empty() && result.back().operation == operation &&
                       result.back().level == level && result.back().codec == codec;
    if (!alike) result.push_back({operation, level, codec});
    result.back().payload_bytes += counts.payload_bytes;
    result.back().metadata_bytes += counts.metadata_bytes;
    result.back().count += counts.count;
  }
  return result;
}

int64_t Ledger::payload_bytes(int64_t level) const {
  int64_t sum = 0;
  for (const auto& [key, counts] : rows_)
    if (std::get<1>(key) == level) sum += counts.payload_bytes;
  return sum;
}

int64_t Ledger::metadata_bytes(int64_t level) const {
  int64_t sum = 0;
  for (const auto& [key, counts] : rows_)
    if (std::get<1>(key) == level) sum += counts.metadata_bytes;
  return sum;
}

}  // namespace strait
