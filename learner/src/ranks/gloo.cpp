// torch's stores and its process group over Gloo, behind a few functions of C.
//
// Every function that can fail returns a message that the caller frees with `tandem_ranks_free`, or null.

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

#include <ATen/ATen.h>
#include <ATen/Version.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace {

using std::chrono::milliseconds;
using Clique = c10d::ProcessGroupGloo;

// The stand-ins for Gloo's headers are right only for the layout that they were tried with. Its mutex is larger on
// aarch64 than on x86-64.
static_assert(
    sizeof(Clique) == 448 + sizeof(std::mutex), "another libtorch: try src/ranks/stubs with it before this is changed");

struct Store {
  c10::intrusive_ptr<c10d::Store> store;
};

struct Group {
  c10::intrusive_ptr<Clique> group;
  c10::intrusive_ptr<c10d::Work> work;
};

template <typename Deed>
char* guarded(Deed deed) {
  try {
    deed();
    return nullptr;
  } catch (const c10::Error& error) {
    return strdup(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return strdup(error.what());
  } catch (...) {
    return strdup("an exception without a text");
  }
}

std::vector<at::Tensor> one(void* tensor) { return {*static_cast<at::Tensor*>(tensor)}; }

}  // namespace

extern "C" {

void tandem_ranks_free(void* memory) { free(memory); }

// The vector instructions that libtorch uses, to be freed with `tandem_ranks_free`.
char* tandem_ranks_instructions() { return strdup(at::get_cpu_capability().c_str()); }

// A store in a file that all ranks of one host see. The file must not exist before.
char* tandem_store_file(const char* path, int64_t timeout_ms, Store** opened) {
  return guarded([&] {
    // Without a number of users, no user removes the file.
    auto store = c10::make_intrusive<c10d::FileStore>(path, -1);
    store->setTimeout(milliseconds(timeout_ms));
    *opened = new Store{store};
  });
}

// `listener`: a listening socket, if the store is kept here; negative if it is kept at `host` and `port`.
char* tandem_store_tcp(const char* host, uint16_t port, int listener, int64_t timeout_ms, Store** opened) {
  return guarded([&] {
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = listener >= 0;
    options.waitWorkers = false;
    options.timeout = milliseconds(timeout_ms);
    if (listener >= 0) options.masterListenFd = listener;
    *opened = new Store{c10::make_intrusive<c10d::TCPStore>(host, options)};
  });
}

// The same store by a connection of its own, for another thread.
char* tandem_store_again(Store* store, Store** opened) {
  return guarded([&] { *opened = new Store{store->store->clone()}; });
}

char* tandem_store_set(Store* store, const char* key, const uint8_t* bytes, size_t length) {
  return guarded([&] { store->store->set(key, std::vector<uint8_t>(bytes, bytes + length)); });
}

// The current value of a key, to be freed with `tandem_ranks_free`; null if there is none.
char* tandem_store_look(Store* store, const char* key, uint8_t** bytes, size_t* length) {
  return guarded([&] {
    *bytes = nullptr;
    *length = 0;
    if (!store->store->check({key})) return;
    const std::vector<uint8_t> found = store->store->get(key);
    *bytes = static_cast<uint8_t*>(malloc(found.size() + 1));
    if (*bytes == nullptr) throw std::bad_alloc();
    memcpy(*bytes, found.data(), found.size());
    *length = found.size();
  });
}

char* tandem_store_delete(Store* store, const char* key) {
  return guarded([&] { store->store->deleteKey(key); });
}

void tandem_store_close(Store* store) { delete store; }

// Joins the ranks that meet under `prefix`, which is used once. The others reach this rank at the address of
// `interface` or, if that is null, at `address`. `join_ms` is the deadline for the others to come, `wait_ms` that of
// each collective operation. `reachable`: whether this rank was ready for the others, if joining failed.
char* tandem_ranks_join(Store* store, const char* prefix, int rank, int count, const char* interface,
                        const char* address, int64_t join_ms, int64_t wait_ms, int* reachable, Group** joined) {
  return guarded([&] {
    *reachable = 0;
    auto options = Clique::Options::create(milliseconds(join_ms));
    options->devices.push_back(interface != nullptr ? Clique::createDeviceForInterface(interface)
                                                    : Clique::createDeviceForHostname(address));
    *reachable = 1;
    auto prefixed = c10::make_intrusive<c10d::PrefixStore>(prefix, store->store);
    prefixed->setTimeout(milliseconds(join_ms));
    auto group = c10::make_intrusive<Clique>(prefixed, rank, count, options);
    group->setTimeout(milliseconds(wait_ms));
    *joined = new Group{group, {}};
  });
}

// These functions begin a collective operation; `tandem_ranks_wait` waits for it. `tensor` is a `tch::Tensor`'s, on the
// CPU.

char* tandem_ranks_sum(Group* group, void* tensor) {
  return guarded([&] {
    auto tensors = one(tensor);
    group->work = group->group->allreduce(tensors, c10d::AllreduceOptions());
  });
}

char* tandem_ranks_sum_at(Group* group, void* tensor, int owner) {
  return guarded([&] {
    auto tensors = one(tensor);
    c10d::ReduceOptions options;
    options.rootRank = owner;
    group->work = group->group->reduce(tensors, options);
  });
}

char* tandem_ranks_copy_of(Group* group, void* tensor, int owner) {
  return guarded([&] {
    auto tensors = one(tensor);
    c10d::BroadcastOptions options;
    options.rootRank = owner;
    group->work = group->group->broadcast(tensors, options);
  });
}

// Waits for at most `ms`; `done` says whether the operation has ended.
char* tandem_ranks_wait(Group* group, int64_t ms, int* done) {
  *done = 0;
  return guarded([&] {
    try {
      group->work->wait(milliseconds(ms));
    } catch (const std::exception&) {
      // A wait that was too short is an exception as well. An operation that goes on has memory of its own.
      if (!group->work->isCompleted()) return;
      if (auto failure = group->work->exception()) std::rethrow_exception(failure);
    }
    *done = 1;
  });
}

void tandem_ranks_leave(Group* group) { delete group; }
}
