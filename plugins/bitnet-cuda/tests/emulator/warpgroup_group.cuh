// The emulator's groups of warpgroup products: all is done at once.
inline void warpgroup_arrive() {}
inline void warpgroup_commit() {}
template <int pending>
void warpgroup_wait() {}
template <int registers>
void fewer_registers() {}
template <int registers>
void more_registers() {}
inline void show_to_tensor_cores() {}
inline unsigned settled(unsigned v) { return v; }
