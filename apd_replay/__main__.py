from apd_replay.cli import main

main()
