# SPDX-License-Identifier: Apache-2.0
# Lets a shared library that a newer glibc links run on glibc 2.28 (manylinux_2_28: RHEL 8, Debian 10 and later), by the
# system's own tool chain: no container with an old one, and CUDA's compiler stays the one that is there.
#
# glibc gives a function a new version when it moves it (2.34 took pthread_* and dl* into libc.so.6) or changes it (the
# functions of libm no longer set errno through a wrapper). The old version stays for programs that were linked before. So
# calls of the functions below go to a jump to the old one (ld --wrap, .symver), which lies in libpthread.so.0,
# libdl.so.2 or librt.so.1 where glibc is old; a new one has these libraries too, without contents. What 2.28 does not
# have at all is in cmake/old_glibc.c. A symbol that is in neither shows in the wheel's tag (python/manylinux.py).
#
# Listed by the glibc that has a newer version. Where the system has none, the linker must not be asked for the old one:
# mold does not find a default version by name and leaves a null pointer.
set(SLUICE_RENEWED_IN_2.29 exp log pow)
set(SLUICE_RENEWED_IN_2.32 pthread_sigmask)
set(SLUICE_RENEWED_IN_2.34
    dlclose dlerror dlmopen dlopen dlsym dlvsym
    pthread_attr_setstacksize pthread_condattr_setclock pthread_condattr_setpshared pthread_create pthread_detach
    pthread_getcpuclockid pthread_getspecific pthread_join pthread_key_create pthread_key_delete pthread_kill
    pthread_mutexattr_destroy pthread_mutexattr_init pthread_mutexattr_setpshared pthread_mutexattr_settype
    pthread_mutex_trylock pthread_once pthread_rwlockattr_destroy pthread_rwlockattr_init pthread_rwlockattr_setpshared
    pthread_rwlock_destroy pthread_rwlock_init pthread_rwlock_rdlock pthread_rwlock_timedrdlock
    pthread_rwlock_timedwrlock pthread_rwlock_tryrdlock pthread_rwlock_trywrlock pthread_rwlock_unlock
    pthread_rwlock_wrlock pthread_setspecific pthread_spin_destroy pthread_spin_init pthread_spin_lock
    pthread_spin_trylock pthread_spin_unlock sem_destroy sem_init sem_post sem_timedwait sem_trywait sem_wait shm_open
    shm_unlink __pthread_key_create)
set(SLUICE_RENEWED_IN_2.38 fmod)
# Their versions before, where it is not that of the first glibc of x86-64, 2.2.5.
set(SLUICE_OLD_VERSION_OF_dlmopen 2.3.4)
set(SLUICE_OLD_VERSION_OF_pthread_condattr_setclock 2.3.3)

function(sluice_link_old_glibc target)
  execute_process(COMMAND getconf GNU_LIBC_VERSION OUTPUT_VARIABLE glibc OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE "glibc " "" glibc ${glibc})
  set(source ${PROJECT_BINARY_DIR}/generated/old_glibc.s)
  set(text "")
  foreach(since 2.29 2.32 2.34 2.38)
    if(glibc VERSION_LESS since)
      break()
    endif()
    foreach(name ${SLUICE_RENEWED_IN_${since}})
      set(version 2.2.5)
      if(SLUICE_OLD_VERSION_OF_${name})
        set(version ${SLUICE_OLD_VERSION_OF_${name}})
      endif()
      string(APPEND text "\t.symver old_${name}, ${name}@GLIBC_${version}\n\t.globl __wrap_${name}\n\t.hidden __wrap_${name}\n"
                         "\t.type __wrap_${name}, @function\n__wrap_${name}:\n\tendbr64\n\tjmp *old_${name}@GOTPCREL(%rip)\n")
      target_link_options(${target} PRIVATE -Wl,--wrap=${name})
    endforeach()
  endforeach()
  file(CONFIGURE OUTPUT ${source} CONTENT "${text}\t.section .note.GNU-stack, \"\", @progbits\n" @ONLY)
  target_sources(${target} PRIVATE ${source} ${PROJECT_SOURCE_DIR}/cmake/old_glibc.c)
  set_source_files_properties(${source} PROPERTIES LANGUAGE C COMPILE_OPTIONS "-xassembler")
  target_link_options(${target} PRIVATE -Wl,--no-as-needed -l:libpthread.so.0 -l:libdl.so.2 -l:librt.so.1 -Wl,--as-needed)
endfunction()
