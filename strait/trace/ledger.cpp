#include "strait/trace/ledger.h"

namespace strait {

void Ledger::add(const Traffic& traffic) {
  Counts& row = rows_[{traffic.operation, traffic.level, traffic.codec}];
  row.payload_bytes += traffic.payload_bytes;
  row.metadata_bytes += traffic.metadata_bytes;
  row.count += traffic.count;
}

void Ledger::merge(const Ledger& other) {
  for (const Traffic& traffic : other.rows()) add(traffic);
  network_bytes_ += other.network_bytes_;
}

int64_t Ledger::bytes() const {
  int64_t sum = 0;
  for (const auto& [key, counts] : rows_) sum += counts.payload_bytes + counts.metadata_bytes;
  return sum;
}

std::vector<Traffic> Ledger::rows() const {
  std::vector<Traffic> result;
  for (const auto& [key, counts] : rows_)
    result.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), counts.payload_bytes,
                      counts.metadata_bytes, counts.count});
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
