// Sections of the run file for systems that are still to come: state in slower memory,
// zeroth-order training, projections, adapters. A key takes its default alone until its system
// works.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace strait {

struct ResidenceState {
  std::string weights = "device", gradients = "device", optimizer = "device";
  std::string activations = "device";
};

struct ResidenceOptions {
  ResidenceState state;
  std::string codec = "none";
  double share_above = 0;
  bool delayed_update = false;
};

struct TierCapacity {
  double device_gb = 0, host_gb = 0, disk_gb = 0;
  std::string disk_path;
};

struct TierThrottle {
  double up_gb_per_second = 0, down_gb_per_second = 0, read_gb_per_second = 0;
  double write_gb_per_second = 0;
};

struct TiersOptions {
  TierCapacity capacity;
  TierThrottle throttle;
};

struct ZerothOrderStep {
  double epsilon = 1e-3;
  int64_t directions = 1;
  std::string restore = "buffer";
  bool exact = true;
};

struct ZerothOrderOptions {
  ZerothOrderStep step;
  int64_t sign_ranks = 1, write_back_every = 1;
};

struct ProjectionMatrix {
  int64_t size = 0, nonzeros = 8;
  std::string schedule = "layers";
};

struct ProjectionRefresh {
  int64_t check_every_steps = 1000;
  double bias = 0.2;
  int64_t samples = 16, iterations = 100;
  double learning_rate = 0.1;
};

struct ProjectionOptions {
  ProjectionMatrix matrix;
  ProjectionRefresh refresh;
};

struct LoraOptions {
  int64_t rank = 0;
  double alpha = 16;
  std::vector<std::string> targets = {"qkv", "output"};
};

struct AdapterOptions {
  LoraOptions lora;
};

}  // namespace strait
